"""Starts a job's agents over Gloo, by ssh on other hosts, and lets its ranks find each other; no secret is an argument.

horovodrun would write all variables into command lines, which every user of a host can read, and its own key, too.
"""

import argparse
import contextlib
import json
import os
import shlex
import socket
import subprocess
import sys
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from keras_par.agent.starter import run_together
from keras_par.agent.wire import VARIABLE
from keras_par.base.addresses import HERE, own_addresses
from keras_par.base.rendezvous import RendezvousServer
from keras_par.base.slots import slots
from keras_par.cluster.reach import Ssh, is_local

ALIVE = ("-o", "ServerAliveInterval=30")  # whoever has started this may be gone, and a host lost, too


def main(argv: Sequence[str] | None = None) -> int:
    """Starts a command for each host in the list; the status of the first that failed."""
    parser = argparse.ArgumentParser(prog="python -m keras_par.launch.gloo", description=__doc__)
    parser.add_argument("-H", dest="hosts", required=True, help="of each rank, divided by commas")
    parser.add_argument("-p", dest="port", type=int, help="of the hosts' ssh servers")
    parser.add_argument("-i", dest="identity", type=Path, help="the file of the key for them")
    parser.add_argument("command", nargs="+", metavar="PROGRAM")
    arguments = parser.parse_args(argv)
    hosts, ssh = arguments.hosts.split(","), Ssh(arguments.port, arguments.identity)
    by_host = defaultdict(list)
    for slot in (found := slots(hosts)):
        by_host[slot.hostname].append(vars(slot))
    others = [host for host in by_host if not is_local(host)]
    server = RendezvousServer("" if others else HERE, 0, len(hosts))
    server.expect(found)
    about = {
        "folder": os.getcwd(),
        "environment": {name: os.environ[name] for name in (VARIABLE,) if name in os.environ},
        "addresses": list(dict.fromkeys([*ways_to(others), *own_addresses()])) if others else [HERE],
        "port": server.port,
        "command": arguments.command,
    }
    return run_together(starts(about, by_host, others, ssh))


def starts(
    about: Mapping[str, Any], by_host: Mapping[str, Sequence[Any]], others: Collection[str], ssh: Ssh
) -> Iterator[tuple[str, subprocess.Popen]]:
    """Starts what starts the agents of each host, on `others` by ssh.

    It is a process on this host, too: when another host's has ended, agents here are the launcher's to end, which then
    knows why.

    Args:
        about: what all are given.
        by_host: the slots of each host.
        others: the hosts that are not this one.
        ssh: how to get to them.
    """
    path = os.environ.get("PYTHONPATH")
    start = [sys.executable, "-P", "-m", "keras_par.agent.starter"]
    named = ["env", f"PYTHONPATH={path}"] if path else []
    for host, places in by_host.items():
        command = [*ssh.command, *ALIVE, host, shlex.join(["exec", *named, *start])] if host in others else start
        with os.fdopen(os.memfd_create("kp-start"), "w+b") as given:
            given.write(json.dumps({**about, "slots": places}).encode())
            given.seek(0)
            process = subprocess.Popen(command, stdin=given)
        yield f"the start on host {host}", process


def ways_to(others: Iterable[str]) -> Iterable[str]:
    """The addresses that this host has towards others, where their names are no inventions of ssh's settings.

    They are the likeliest by which others reach it.
    """
    for host in others:
        with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((host, 9))  # sends nothing
            yield probe.getsockname()[0]


if __name__ == "__main__":
    sys.exit(main())
