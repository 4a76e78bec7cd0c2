"""The places of a job's ranks on its hosts, and the variables by which Horovod's launcher tells a rank its own."""

import os
import socket
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True)
class Slot:
    """A rank's place, by the names that Horovod's launcher gives it."""

    rank: int
    size: int
    hostname: str
    local_rank: int
    local_size: int
    cross_rank: int
    cross_size: int


def slots(hosts: list[str]) -> list[Slot]:
    """Each rank's place, given each rank's host; ranks of a host need not follow each other."""
    on_host: Counter[str] = Counter()  # of the ranks before
    with_local_rank: Counter[int] = Counter()
    found = []
    for rank, host in enumerate(hosts):
        local = on_host[host]
        found.append((rank, host, local, with_local_rank[local]))
        on_host[host] += 1
        with_local_rank[local] += 1
    return [
        Slot(rank, len(hosts), host, local, on_host[host], cross, with_local_rank[local])
        for rank, host, local, cross in found
    ]


def variables(slot: Slot, address: str, port: int) -> dict[str, str]:
    """What horovodrun sets for a rank over Gloo, with the rendezvous server at `address`."""
    interface = os.environ.get("HOROVOD_GLOO_IFACE") or interface_to(address)
    return {
        **{f"HOROVOD_{name.upper()}": str(value) for name, value in vars(slot).items()},
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port),
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
        "HOROVOD_GLOO_IFACE": interface,
        "NCCL_SOCKET_IFNAME": interface,
    }


def interface_to(address: str) -> str:
    """The name of the network interface by which this host reaches `address`, which may be its own."""
    import psutil

    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((address, 9))  # sends nothing
        own = probe.getsockname()[0]
    return next(name for name, found in psutil.net_if_addrs().items() if own in [entry.address for entry in found])
