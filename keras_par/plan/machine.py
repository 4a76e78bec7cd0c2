"""What a machine can do, in the few numbers that a cost is made of; read from TOML and written to it."""

import json
import math
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal, get_args

from keras_par.plan import toml
from keras_par.plan.case import Collective

Reach = Literal["host", "network"]  # the ranks of a collective are on one host, or on several
# How often each byte crosses a link of a ring of n ranks, as parts of (n - 1) / n; Thakur et al., "Optimization of
# Collective Communication Operations in MPICH" (2005). A gather's bytes are counted once for each rank.
ROUNDS: dict[Collective, int] = {"all_reduce": 2, "reduce_scatter": 1}
OPTIONAL = {"overlap", "exposed", "cached_bytes", "cached_bytes_per_second"}  # of a machine's file
MOST = 1e30  # of any number
MAY_BE_ZERO = {"overlap", "exposed", "cached_bytes", "kernel_seconds", "step_seconds", "seconds", "aside_seconds"}


@dataclass(frozen=True)
class Link:
    """The time of a collective: a part that any takes, and one for its bytes.

    Args:
        seconds: of one without bytes, among two ranks.
        bytes_per_second: over a link.
        aside_seconds: the first where many are under way that do not wait for each other.
    """

    seconds: float
    bytes_per_second: float
    aside_seconds: float


@dataclass(frozen=True)
class Machine:
    """A host and what connects it.

    Args:
        name: for readers.
        flops: floating-point operations that a rank does in a second, in large products of float32.
        bytes_per_second: that a rank reads from memory and writes into it.
        update_bytes_per_second: the same of an optimizer, of what it must read and write at least.
        kernel_seconds: that any operation takes.
        step_seconds: that any step takes.
        memory_gb: of a rank, in 2**30 bytes.
        ranks_per_host: of a host that is full.
        overlap: the part of a collective's bytes that is not hidden behind what does not wait for it.
        links: by collective and reach, as in `{"all_reduce": {"host": Link(...)}}`.
        exposed: the part of the shorter of computing and memory that is not hidden behind the longer.
        cached_bytes: that an operation finds in caches, of those that it reads and writes.
        cached_bytes_per_second: that it reads and writes there.
    """

    name: str
    flops: float
    bytes_per_second: float
    update_bytes_per_second: float
    kernel_seconds: float
    step_seconds: float
    memory_gb: float
    ranks_per_host: int
    overlap: float = 1.0
    links: Mapping[str, Mapping[str, Link]] = field(default_factory=dict)
    exposed: float = 0.0
    cached_bytes: float = 0.0
    cached_bytes_per_second: float = 1.0

    def compute_seconds(self, flops: float, num_bytes: float, num_kernels: int) -> float:
        """The roofline (Williams et al., 2009): the longer of computing and memory, exposed parts of the shorter."""
        shorter, longer = sorted((flops / self.flops, self.memory_seconds(num_bytes, num_kernels)))
        return longer + self.exposed * shorter + num_kernels * self.kernel_seconds

    def memory_seconds(self, num_bytes: float, num_kernels: int) -> float:
        """Of reading and writing so many bytes, by so many kernels."""
        cached = min(num_bytes, self.cached_bytes * max(num_kernels, 1))
        return cached / self.cached_bytes_per_second + (num_bytes - cached) / self.bytes_per_second

    def send_seconds(
        self, kind: Collective, num_bytes: int, num_ranks: int, reach: Reach, is_aside: bool = False
    ) -> float:
        """Of a collective to which each rank gives so many bytes.

        Args:
            kind: of it.
            num_bytes: of a rank.
            num_ranks: that take part.
            reach: where they are.
            is_aside: True if other work does not wait for it.
        """
        if num_ranks == 1:
            return 0
        link = self.links[kind][reach]
        begin = link.aside_seconds if is_aside else link.seconds
        bytes_of = self.byte_seconds(kind, num_bytes, num_ranks, reach)
        return begin * math.ceil(math.log2(num_ranks)) + bytes_of * (self.overlap if is_aside else 1)

    def byte_seconds(self, kind: Collective, num_bytes: int, num_ranks: int, reach: Reach) -> float:
        """The part of it that is for its bytes."""
        if num_ranks == 1:
            return 0
        return crossing_bytes(kind, num_bytes, num_ranks) / self.links[kind][reach].bytes_per_second

    def text(self) -> str:
        """As TOML."""
        lines = [f"{each.name} = {shown(getattr(self, each.name))}" for each in fields(self) if each.name != "links"]
        for kind, links in self.links.items():
            lines += ["", f"[links.{kind}]"]
            lines += [
                f"{reach} = {{ {', '.join(f'{name} = {shown(value)}' for name, value in asdict(link).items())} }}"
                for reach, link in links.items()
            ]
        return "\n".join(lines) + "\n"


def typical(machines: Sequence[Machine]) -> Machine:
    """The machine whose every number is the median of those of several measurements, which know the same links."""
    first = machines[0]
    numbers = {
        each.name: statistics.median(getattr(machine, each.name) for machine in machines)
        for each in fields(Machine)
        if each.name not in ("name", "ranks_per_host", "links")
    }
    links = {
        kind: {
            reach: Link(
                *map(statistics.median, zip(*(astuple(each.links[kind][reach]) for each in machines), strict=True))
            )
            for reach in reaches
        }
        for kind, reaches in first.links.items()
    }
    return replace(first, **numbers, links=links)


def shown(value: str | float) -> str:
    """A value as TOML; of a measured number four digits."""
    return f"{value:.4g}" if isinstance(value, float) else json.dumps(value)


def crossing_bytes(kind: Collective, num_bytes: int, num_ranks: int) -> float:
    """How many bytes cross each link of a ring in a collective to which each rank gives so many."""
    return num_bytes * (num_ranks - 1) * (ROUNDS[kind] / num_ranks if kind in ROUNDS else 1)


def read_machine(path: Path) -> Machine:
    """The machine that a file describes.

    Raises:
        ValueError: it is not TOML, or a number is missing or not above 0.
    """
    try:
        content = toml.loads(toml.read(path))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"keras-par: {path} is no machine: {error}: write one by 'keras-par calibrate'.") from error
    links = content.pop("links", {})
    if not isinstance(links, dict):
        raise ValueError(f"keras-par: {path} is no machine: 'links' is no table: write one by 'keras-par calibrate'.")
    names = {each.name for each in fields(Machine)} - {"links"}
    needed = (names - OPTIONAL) | ({"cached_bytes_per_second"} if content.get("cached_bytes") else set())
    wrong = next(iter(needed - set(content)), None) or next(iter(set(content) - names), None)
    if wrong is not None:
        what = "lacks" if wrong in names else "has an unknown key,"
        raise ValueError(f"keras-par: {path} {what} '{wrong}': write it by 'keras-par calibrate'.")
    for name in sorted(names & set(content)):
        if not can_be(name, content[name]):
            what = "a text" if name == "name" else "a number above 0"
            raise ValueError(f"keras-par: {path} says {name} = {str(content[name])[:40]}: give {what}.")
    return Machine(**content, links={kind: links_of(path, kind, links) for kind in get_args(Collective)})


def can_be(name: str, value: Any) -> bool:
    """True if the name or a number of a machine can have this value."""
    if name == "name":
        return isinstance(value, str)
    kinds = (int,) if name == "ranks_per_host" else (int, float)
    is_number = isinstance(value, kinds) and not isinstance(value, bool) and value < MOST
    return is_number and (value > 0 or (value == 0 and name in MAY_BE_ZERO))


def links_of(path: Path, kind: str, links: Mapping[str, Any]) -> dict[str, Link]:
    """Those of a collective; what a file says of one reach alone holds for the other, too."""
    said = links.get(kind, {})
    try:
        if set(said) - set(get_args(Reach)):
            raise KeyError
        found = {reach: Link(**said[reach]) for reach in get_args(Reach) if reach in said}
        if not all(can_be(name, value) for link in found.values() for name, value in asdict(link).items()):
            raise TypeError
        host = found.get("host") or found["network"]
        return {"host": host, "network": found.get("network", host)}
    except (AttributeError, KeyError, TypeError):
        raise ValueError(
            f"keras-par: {path} does not say seconds, aside_seconds and bytes_per_second above 0 of [links.{kind}]: "
            "write it by 'keras-par calibrate'."
        ) from None
