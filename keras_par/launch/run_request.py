"""What the command line wants to run, and where."""

import argparse
import os
import sys
from collections import Counter
from importlib.machinery import PathFinder
from pathlib import Path
from typing import NamedTuple

from keras_par.base import rank_variables
from keras_par.cluster import hosts
from keras_par.cluster.environment import find
from keras_par.cluster.hosts import Host, Place
from keras_par.cluster.rank_table import read_rank_table
from keras_par.cluster.slurm import slurm_hosts, tasks_of_step
from keras_par.launch.next_world import Limits


class UsageError(ValueError):
    """The command line cannot be carried out; one sentence."""


class Span(NamedTuple):
    """Numbers from the least to the most, as torchrun's --nnodes has them."""

    least: int
    most: int


def require_one_launcher() -> None:
    """Ends what would be several jobs, each with all ranks, that write to the same files.

    Raises:
        UsageError: srun has started this command several times.
    """
    tasks = tasks_of_step(os.environ)
    if rank_variables.told() is None and tasks > 1:
        raise UsageError(
            f"srun has started this command {tasks} times, and each would start all ranks: call 'keras-par run' "
            "without srun, or start the script itself by srun."
        )


def limits_of(arguments: argparse.Namespace) -> Limits | None:
    """How many ranks the worlds of the job may have; None if it keeps the ranks that it begins with.

    Raises:
        UsageError: the numbers contradict each other.
    """
    nodes = arguments.nnodes or Span(1, 1)
    wanted = (arguments.min_ranks, arguments.max_ranks, arguments.host_discovery_script)
    if nodes.least == nodes.most and not any(wanted):
        return None
    table = rank_table_of(arguments)
    if table is not None:
        raise UsageError(f"a rank table has all ranks there are: leave {table[1]} out, or --min-np and --max-np.")
    per_node = arguments.per_node or 1
    least = arguments.min_ranks or arguments.num_ranks or nodes.least * per_node
    first, most = arguments.num_ranks or least, arguments.max_ranks
    if not least <= first <= (most or first):
        raise UsageError(f"--min-np {least}, -np {first} and --max-np {most} must be in this order.")
    return Limits(least, most, first, nodes.least, arguments.nnodes and nodes.most)


def places_of(arguments: argparse.Namespace) -> list[Place]:
    """Where the ranks will run.

    Raises:
        ClusterError: the hosts or the rank table are wrong, or do not have as many slots as ranks are wanted.
        UsageError: nothing says how many ranks there shall be, or what says it does not fit.
    """
    if arguments.node_rank is not None and (arguments.node_rank, arguments.nnodes or Span(1, 1)) != (0, (1, 1)):
        raise UsageError(
            "--node_rank is not needed: one command starts the ranks of all hosts, which -H or --hostfile names; to "
            "start each host by itself, use torchrun or a shell loop."
        )
    table = rank_table_of(arguments)
    if table is not None:
        return places_of_table(arguments, *table)
    found = hosts_of(arguments)
    if arguments.nnodes is not None:
        if arguments.nnodes.most > len(found):
            raise UsageError(
                f"--nnodes {arguments.nnodes.most} does not fit {len(found)} host(s): name all by -H or --hostfile; "
                "one command starts the ranks of all hosts."
            )
        found = found[: arguments.nnodes.most]
    num_ranks = arguments.num_ranks or sum(host.slots for host in found)
    if num_ranks == 0:
        raise UsageError("the hosts have no slots for ranks: say how many by -H HOST:SLOTS.")
    return hosts.places(num_ranks, found)


def rank_table_of(arguments: argparse.Namespace) -> tuple[Path, str] | None:
    """The rank table that the user names, and by what; the variable of MindSpore's scripts counts less than options."""
    if arguments.rank_table:
        return arguments.rank_table, f"'{arguments.rank_table}'"
    named = os.environ.get("RANK_TABLE_FILE")
    if not named or arguments.hosts is not None or arguments.hostfile:
        return None
    return Path(named), f"RANK_TABLE_FILE='{named}'"


def places_of_table(arguments: argparse.Namespace, table: Path, named: str) -> list[Place]:
    """The places in a rank table, which other options may only confirm."""
    places = read_rank_table(table)
    counts = Counter(place.host for place in places)
    num_hosts = None if arguments.nnodes is None else arguments.nnodes.most
    given = {"-np": arguments.num_ranks, "--nproc_per_node": arguments.per_node, "--nnodes": num_hosts}
    have = {"-np": {len(places)}, "--nproc_per_node": set(counts.values()), "--nnodes": {len(counts)}}
    for option, number in given.items():
        if number is not None and {number} != have[option]:
            raise UsageError(f"{option} {number} does not fit {named}, which has {len(places)} ranks.")
    return places


def hosts_of(arguments: argparse.Namespace) -> list[Host]:
    """The hosts that there are now: those that the user names, else those of a SLURM allocation, else this one.

    They have as many slots as the user gives each.
    """
    if arguments.host_discovery_script:
        found = hosts.discovered(arguments.host_discovery_script)
    elif arguments.hosts is not None:
        found = hosts.parse_hosts(arguments.hosts)
    elif arguments.hostfile:
        found = hosts.read_hostfile(arguments.hostfile)
    elif (allocated := slurm_hosts(os.environ)) is not None:
        found = allocated
    elif number := arguments.max_ranks or arguments.num_ranks or arguments.per_node:
        found = [Host("localhost", number)]
    else:
        raise UsageError("how many ranks shall there be? Say -np N, or name hosts by -H, --hostfile, --rank-table.")
    return found if arguments.per_node is None else [Host(host.name, arguments.per_node) for host in found]


def command_of(is_module: bool, script: str, rest: list[str]) -> list[str]:
    """The program that each rank runs: a Python file by this Python, anything else as it is.

    Raises:
        UsageError: there is no such file, program or module.
    """
    if is_module:
        if PathFinder.find_spec(script.partition(".")[0], [os.getcwd(), *sys.path]) is None:
            raise UsageError(f"there is no module '{script}'.")
        return [sys.executable, "-m", script, *rest]
    path = Path(script)
    if path.is_file() and (path.suffix == ".py" or not os.access(path, os.X_OK)):
        return [sys.executable, script, *rest]
    program = str(path.absolute()) if path.is_file() else find(script)
    if program is None or path.is_dir():
        raise UsageError(f"there is no script or program '{script}'.")
    return [sys.executable if Path(program).samefile(sys.executable) else program, *rest]


def variables_of(given: list[str]) -> dict[str, str]:
    """The variables that `--env` names.

    Raises:
        UsageError: one has no value here, or no name.
    """
    found = {}
    for each in given:
        name, has_value, value = each.partition("=")
        if not name or (not has_value and name not in os.environ):
            raise UsageError(f"--env {each} names no variable of this shell: write --env NAME=VALUE.")
        found[name] = value if has_value else os.environ[name]
    return found
