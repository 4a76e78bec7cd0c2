"""The addresses by which other hosts find this one, and the habit of Debian's that has it find a wrong one itself."""

import contextlib
import socket

HERE = "127.0.0.1"
NOT_FOUND = "no address"
NO_OTHERS = ("127.", "::1", NOT_FOUND)  # what addresses begin with that lead no other host here


def own_address() -> str:
    """What this host finds for its own name."""
    try:
        return str(socket.getaddrinfo(socket.gethostname(), None)[0][4][0])
    except OSError:
        return NOT_FOUND


def require_own_address() -> None:
    """Refuses a host that finds no address for its own name, without which Horovod's Gloo dies of a fault (SIGSEGV).

    Raises:
        RuntimeError: it does not.
    """
    if own_address() == NOT_FOUND:
        host = socket.gethostname()
        raise RuntimeError(
            f"keras-par: host {host} finds no address for its own name, which Horovod's Gloo needs: write the line "
            f"'127.0.0.1 {host}' into its /etc/hosts, on several hosts with its network address, or let MPI connect "
            "the ranks."
        )


def own_addresses() -> list[str]:
    """The addresses of this host that other hosts may know it by, the likeliest first."""
    import psutil

    stats = psutil.net_if_stats()
    found = [
        address.address
        for name, addresses in psutil.net_if_addrs().items()
        for address in addresses
        if address.family == socket.AF_INET and stats[name].isup and not address.address.startswith("127.")
    ]
    with contextlib.suppress(OSError):
        named = socket.gethostbyname(socket.gethostname())
        found.sort(key=lambda address: address != named)
    return [*found, "127.0.0.1"]


def address_of(interface: str, other: str) -> str:
    """The address that a network interface of this host has: of several the one by which it reaches another host.

    Raises:
        RuntimeError: there is none of this name, or it has no IPv4 address.
    """
    import psutil

    addresses = psutil.net_if_addrs().get(interface, [])
    found = [each.address for each in addresses if each.family == socket.AF_INET]
    if not found:
        raise RuntimeError(
            f"keras-par: there is no network interface {interface} with an IPv4 address: unset HOROVOD_GLOO_IFACE."
        )
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((other, 9))  # sends nothing
        own = probe.getsockname()[0]
    return own if own in found else found[0]


def lost_in_gloo(host: str, address: str) -> str | None:
    """Why other hosts would not find this one over Gloo, one sentence; None if they would.

    Gloo takes the interface it is told for all but Horovod's process sets, for which it looks up the own name.

    Args:
        host: its name.
        address: that it finds for its name.
    """
    if not address.startswith(NO_OTHERS):
        return None
    return (
        f"Host {host} finds {address} for its own name, where Horovod's Gloo would wait for other hosts in vain: give "
        "the name its network address in that host's /etc/hosts, or let MPI connect the ranks."
    )
