"""Finds which other hosts answer this one, so that a launcher can say between which the network is broken."""

import errno
import select
import socket
from collections.abc import Mapping, Sequence

ANSWER_SECONDS = 2.0  # that hosts have to answer
UNDER_WAY = (0, errno.EINPROGRESS, errno.ECONNREFUSED)
ANSWERS = (0, errno.ECONNREFUSED)  # a host that has no such door says so


class Knocks:
    """Connections that were begun to other hosts.

    Args:
        addresses: of the hosts, each an address and a port. That nobody listens there is an answer, too.
    """

    def __init__(self, addresses: Mapping[str, Sequence]):
        self._doors = {host: socket.socket() for host in addresses}
        self._failed: set[str] = set()
        for host, (address, port) in addresses.items():
            self._doors[host].setblocking(False)
            if self._doors[host].connect_ex((address, port)) not in UNDER_WAY:
                self._failed.add(host)

    def unanswered(self) -> list[str]:
        """The hosts that have not answered until now, at which the connections end."""
        _, settled, _ = select.select([], self._doors.values(), [], 0)
        errors = {host: door.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) for host, door in self._doors.items()}
        silent = [host for host, door in self._doors.items() if door not in settled or errors[host] not in ANSWERS]
        for door in self._doors.values():
            door.close()
        return sorted({*silent, *self._failed})
