"""Where the ranks of a job run: hosts and their slots, by -H, a file or a script, and which rank goes to which host."""

import re
import subprocess
from collections import Counter
from dataclasses import dataclass
from itertools import chain, islice, repeat
from pathlib import Path

HOST_NAME = re.compile(r"[A-Za-z0-9_][\w.-]*", re.ASCII)  # no name that ssh would take for an option
SCRIPT_SECONDS = 30  # how long a script may take that says which hosts there are
LONGEST = 100  # characters of a text that a sentence shows
MAX_SLOTS = re.compile(r"max[-_]slots=\d+")  # Open MPI's limit for oversubscription, which is never done here


@dataclass(frozen=True)
class Host:
    """A machine, by name or IPv4 address, and how many ranks it takes."""

    name: str
    slots: int


@dataclass(frozen=True)
class Place:
    """Where a rank runs. `device` is its number on the host, None unless a rank table gave one."""

    rank: int
    host: str
    device: str | None = None


class ClusterError(ValueError):
    """Hosts that are no cluster: one sentence that names the file or option, the field and what to write."""


def parse_hosts(text: str) -> list[Host]:
    """Reads -H of mpirun and horovodrun: "node-1:4,node-2". A host without a number has 1 slot; slots add up.

    Raises:
        ClusterError: a part is no host, or has no number of slots.
    """
    where = f"-H {quoted(text)}"
    return merged([parse_host(part.strip(), where) for part in text.split(",")])


def read_hostfile(path: Path) -> list[Host]:
    """Reads a host file of mpirun or horovodrun, with lines such as "node-1 slots=4  # comment"; slots add up.

    Raises:
        ClusterError: the file cannot be read, names no host, or has a line that is none.
    """
    lines = [line.partition("#")[0].strip() for line in read(path).splitlines()]
    hosts = [parse_line(line, f"{path} line {number}") for number, line in enumerate(lines, 1) if line]
    if not hosts:
        raise ClusterError(f"keras-par: {path} names no host: write a line 'host slots=N' for each.")
    return merged(hosts)


def discovered(script: Path) -> list[Host]:
    """The hosts that an executable of the user's prints, as for Horovod's elastic jobs, a line "host:slots" for each.

    A host without a number has 1 slot. There may be none.

    Raises:
        ClusterError: the script cannot be run, fails or takes too long, or prints what is no host.
    """
    try:
        result = subprocess.run(
            [str(script.absolute())], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SCRIPT_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        why = error.strerror if isinstance(error, OSError) else f"it took more than {SCRIPT_SECONDS} s"
        raise ClusterError(
            f"keras-par: the host discovery script '{script}' cannot be run ({why}): make it a program that prints a "
            "line 'host:slots' for each host."
        ) from None
    if result.returncode != 0:
        said = (result.stderr.strip().splitlines() or ["it printed no error"])[-1]
        raise ClusterError(
            f"keras-par: the host discovery script '{script}' ended with status {result.returncode} ({said}): let it "
            "print a line 'host:slots' for each host."
        )
    lines = [line.strip() for line in result.stdout.splitlines() if line.strip()]
    return merged([parse_host(line, f"what '{script}' prints") for line in lines])


def read(path: Path) -> str:
    """The text of a file.

    Raises:
        ClusterError: it cannot be read.
    """
    try:
        return path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise ClusterError(f"keras-par: {path} cannot be read ({reason}): give the path of a text file.") from None


def parse_line(line: str, where: str) -> Host:
    name, *fields = re.sub(r"\s*=\s*", "=", line).split()
    wrong = [field for field in fields if not field.startswith("slots=") and not MAX_SLOTS.fullmatch(field)]
    slots = [field.removeprefix("slots=") for field in fields if field.startswith("slots=")]
    if wrong or len(slots) > 1:
        field = (wrong or fields)[-1]
        raise ClusterError(f"keras-par: {where}: {quoted(field)} is not understood: write 'host slots=N'.")
    return parse_host(":".join([name, *slots]), where)


def parse_host(text: str, where: str) -> Host:
    name, colon, slots = text.partition(":")
    if not HOST_NAME.fullmatch(name):
        raise ClusterError(f"keras-par: {where}: {quoted(name)} is no host name or IPv4 address: write 'host:slots'.")
    if colon and (not re.fullmatch(r"[0-9]{1,6}", slots) or int(slots) < 1):
        raise ClusterError(
            f"keras-par: {where}: host {name[:LONGEST]} has {quoted(slots)} slots: write a whole number of at "
            "least 1, the ranks that it takes."
        )
    return Host(name, int(slots) if colon else 1)


def quoted(text: str) -> str:
    """A text as a sentence shows it, of a long one its begin."""
    return repr(text if len(text) <= LONGEST else f"{text[:LONGEST]}...")


def merged(hosts: list[Host]) -> list[Host]:
    slots: Counter[str] = Counter()
    for host in hosts:
        slots[host.name] += host.slots
    return [Host(*item) for item in slots.items()]


def places(num_ranks: int, hosts: list[Host]) -> list[Place]:
    """Gives every rank a host, filling one host after the other.

    Raises:
        ClusterError: there are fewer slots than ranks.
    """
    num_slots = sum(host.slots for host in hosts)
    if num_ranks > num_slots:
        listed = ", ".join(f"{host.name}:{host.slots}" for host in hosts[:4]) + (", ..." if len(hosts) > 4 else "")
        raise ClusterError(
            f"keras-par: {num_ranks} ranks do not fit into the {num_slots} slot(s) of {listed}: start at most "
            f"{num_slots}, or give the hosts more slots."
        )
    names = chain.from_iterable(repeat(host.name, host.slots) for host in hosts)
    return [Place(rank, name) for rank, name in enumerate(islice(names, num_ranks))]
