"""What the command line wants to run, and where."""

import argparse
import os
import sys
from pathlib import Path

from keras_par.cluster import hosts
from keras_par.cluster.environment import find
from keras_par.cluster.hosts import Host, Place
from keras_par.cluster.rank_table import read_rank_table
from keras_par.cluster.slurm import slurm_hosts

USAGE_STATUS = 2  # as argparse has it


class UsageError(ValueError):
    """The command line cannot be carried out; one sentence."""


def places_of(arguments: argparse.Namespace) -> list[Place]:
    """Where the ranks will run.

    Raises:
        ClusterError: the hosts or the rank table are wrong, or do not have as many slots as ranks are wanted.
        UsageError: nothing says how many ranks there shall be.
    """
    if arguments.rank_table:
        places = read_rank_table(arguments.rank_table)
        if arguments.num_ranks not in (None, len(places)):
            given = f"'{arguments.rank_table}', which has {len(places)} ranks"
            raise UsageError(f"-np {arguments.num_ranks} does not fit {given}.")
        return places
    found = hosts_of(arguments)
    num_ranks = arguments.num_ranks or sum(host.slots for host in found)
    if num_ranks == 0:
        raise UsageError("the hosts have no slots for ranks: say how many by -H HOST:SLOTS.")
    return hosts.places(num_ranks, found)


def hosts_of(arguments: argparse.Namespace) -> list[Host]:
    """The hosts that the user names, else those of a SLURM allocation, else this one."""
    if arguments.hosts is not None:
        return hosts.parse_hosts(arguments.hosts)
    if arguments.hostfile:
        return hosts.read_hostfile(arguments.hostfile)
    allocated = slurm_hosts(os.environ)
    if allocated is not None:
        return allocated
    if arguments.num_ranks is None:
        raise UsageError("how many ranks shall there be? Say -np N, or name hosts by -H, --hostfile, --rank-table.")
    return [Host("localhost", arguments.num_ranks)]


def command_of(is_module: bool, script: str, rest: list[str]) -> list[str]:
    """The program that each rank runs: a Python file by this Python, anything else as it is.

    Raises:
        UsageError: there is no such file or program.
    """
    if is_module:
        return [sys.executable, "-m", script, *rest]
    path = Path(script)
    if path.is_file() and (path.suffix == ".py" or not os.access(path, os.X_OK)):
        return [sys.executable, script, *rest]
    program = str(path.absolute()) if path.is_file() else find(script)
    if program is None or path.is_dir():
        raise UsageError(f"there is no script or program '{script}'.")
    return [sys.executable if Path(program).samefile(sys.executable) else program, *rest]
