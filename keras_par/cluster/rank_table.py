"""Reads a rank table: the JSON file in which MindSpore's users list servers, their devices and the ranks on them."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from keras_par.cluster.hosts import HOST_NAME, ClusterError, Place, read

MEANING = {
    "version": "the text '1.0'",
    "status": "the text 'completed'",
    "server_count": "the number of servers in server_list",
    "server_list": "a list of servers",
    "server_id": "a host's name or IPv4 address",
    "device": "a list of the server's devices",
    "device_id": "a device's number on its server, from 0",
    "rank_id": "a rank, from 0",
    "group_count": "the number of groups in group_list",
    "group_list": "a list of groups",
    "instance_count": "the number of ranks in instance_list",
    "instance_list": "a list of ranks",
    "devices": "a list with the one device of a rank",
}
KINDS = {dict: "an object", list: "a list", str: "a text", bool: "true or false", type(None): "null"}


@dataclass(frozen=True)
class Field:
    """A value of the table, with its path in it for error messages."""

    file: Path
    path: str
    value: Any

    def wrong(self, what: str) -> ClusterError:
        """An error about this field."""
        return ClusterError(f"keras-par: {self.file}: {self.path or 'the table'} {what}.")

    def __getitem__(self, name: str) -> "Field":
        if not isinstance(self.value, dict):
            raise self.wrong(f"is {self.kind}, but must be an object with the field '{name}'")
        field = Field(self.file, f"{self.path}.{name}".lstrip("."), self.value.get(name))
        if name not in self.value:
            raise field.wrong(f"is missing: it must be {MEANING[name]}")
        return field

    def __iter__(self) -> Iterator["Field"]:
        if not isinstance(self.value, list):
            raise self.unfit()
        if not self.value:
            raise self.wrong(f"is empty, but must be {MEANING[self.name]}")
        return (Field(self.file, f"{self.path}[{index}]", value) for index, value in enumerate(self.value))

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition(".")[2]

    @property
    def kind(self) -> str:
        """What the value is, in words."""
        return KINDS.get(type(self.value), str(self.value))

    @property
    def number(self) -> int:
        """The value, a whole number or the text of one."""
        text = str(self.value) if isinstance(self.value, int | str) and not isinstance(self.value, bool) else ""
        if not re.fullmatch(r"[0-9]{1,9}", text):
            raise self.unfit()
        return int(text)

    @property
    def host(self) -> str:
        """The value, a host's name or address."""
        if not isinstance(self.value, str) or not HOST_NAME.fullmatch(self.value):
            raise self.unfit()
        return self.value

    def expect(self, text: str) -> None:
        """Refuses any other value."""
        if str(self.value) != text:
            raise self.unfit()

    def unfit(self) -> ClusterError:
        """The error that the value is not what the field means."""
        is_shown = isinstance(self.value, str | int | float) and not isinstance(self.value, bool)
        shown = repr(self.value)[:40] if is_shown else self.kind
        return self.wrong(f"is {shown}, but must be {MEANING[self.name]}")


def read_rank_table(path: Path) -> list[Place]:
    """The places of all ranks, in their order, from a rank table of MindSpore's (HCCL's).

    It is of version 1.0, with a `server_list`, or as MindSpore 0.2 had it, with a `group_list`. Numbers may be written
    as texts. Addresses of network cards are not needed and not read.

    Raises:
        ClusterError: it is no such table; names the file and the field.
    """
    table = Field(path, "", parse(path))
    is_old = isinstance(table.value, dict) and "group_list" in table.value
    seen: dict[tuple, Field] = {}
    found: dict[int, Place] = {}
    for server, device, rank in of_groups(table) if is_old else of_servers(table, seen):
        place = Place(rank.number, server.host, str(device.number))
        advice = "give every rank of a server its own device" if is_old else "list every device of a server once"
        refuse_twin(seen, device, ("device", place.host, device.number), advice)
        refuse_twin(seen, rank, ("rank", place.rank), "give every device its own rank")
        found[place.rank] = place
    table["status"].expect("completed")
    for number in range(last := len(found)):
        if number not in found:  # a rank is too high for all to be 0, 1, 2, ...
            raise seen["rank", max(found)].wrong(
                f"is {max(found)}, but the table has {last} device(s) and none with rank {number}: number them from 0 "
                f"to {last - 1}"
            )
    return [found[number] for number in sorted(found)]


def parse(path: Path) -> Any:
    text = read(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise ClusterError(f"keras-par: {path}{where} is not JSON ({reason}): correct it.") from None


def of_servers(table: Field, seen: dict[tuple, Field]) -> Iterator[tuple[Field, Field, Field]]:
    """The server, the device and the number of each rank."""
    table["version"].expect("1.0")
    for server in counted(table, "server_list", "server_count", "server"):
        host = server["server_id"]
        refuse_twin(seen, host, ("server", host.host), "list all devices of a server together")
        yield from ((host, device["device_id"], device["rank_id"]) for device in server["device"])


def of_groups(table: Field) -> Iterator[tuple[Field, Field, Field]]:
    """The same of a table as MindSpore 0.2 had it."""
    for group in counted(table, "group_list", "group_count", "group"):
        for rank in counted(group, "instance_list", "instance_count", "rank"):
            own = list(rank["devices"])
            if len(own) > 1:
                raise rank["devices"].wrong(f"has {len(own)} devices, but must be {MEANING['devices']}")
            yield rank["server_id"], own[0]["device_id"], rank["rank_id"]


def counted(owner: Field, name: str, count: str, what: str) -> list[Field]:
    """The members of a list, of which another field must say how many there are."""
    found = list(owner[name])
    if owner[count].number != len(found):
        raise owner[count].wrong(f"is {owner[count].number}, but {name} has {len(found)} {what}(s): write that number")
    return found


def refuse_twin(seen: dict[tuple, Field], field: Field, key: tuple, advice: str) -> None:
    """Refuses a field with the value of another, naming both."""
    first = seen.setdefault(key, field)
    if first is not field:
        raise field.wrong(f"is {key[-1]}, which {first.path.rpartition('.')[0]} has already: {advice}")
