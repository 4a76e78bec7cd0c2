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


@dataclass(frozen=True)
class Device:
    """One device of the table."""

    field: Field
    place: Place


def read_rank_table(path: Path) -> list[Place]:
    """The places of all ranks, in their order, from a rank table of MindSpore's (HCCL's).

    It is of version 1.0, with a `server_list`, or as MindSpore 0.2 had it, with a `group_list`. Numbers may be written
    as texts. Addresses of network cards are not needed and not read.

    Raises:
        ClusterError: it is no such table; names the file and the field.
    """
    table = Field(path, "", parse(path))
    is_old = isinstance(table.value, dict) and "group_list" in table.value
    if not is_old:
        table["version"].expect("1.0")
    found = devices_of_groups(table) if is_old else devices_of_servers(table)
    refuse_twins([device.field["rank_id"] for device in found], "give every device its own rank")
    refuse_gap(found)
    return sorted((device.place for device in found), key=lambda place: place.rank)


def parse(path: Path) -> Any:
    text = read(path)
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        where = f" line {error.lineno}" if isinstance(error, json.JSONDecodeError) else ""
        reason = error.msg if isinstance(error, json.JSONDecodeError) else error
        raise ClusterError(f"keras-par: {path}{where} is not JSON ({reason}): correct it.") from None


def devices_of_servers(table: Field) -> list[Device]:
    servers = counted(table, "server_list", "server_count", "server")
    table["status"].expect("completed")
    refuse_twins([server["server_id"] for server in servers], "list all devices of a server together")
    return [device for server in servers for device in devices(server)]


def devices_of_groups(table: Field) -> list[Device]:
    groups = counted(table, "group_list", "group_count", "group")
    table["status"].expect("completed")
    found: list[Device] = []
    ids: dict[str, list[Field]] = {}
    for group in groups:
        for rank in counted(group, "instance_list", "instance_count", "rank"):
            own = list(rank["devices"])
            if len(own) > 1:
                raise rank["devices"].wrong(f"has {len(own)} devices, but must be {MEANING['devices']}")
            host, device = rank["server_id"].host, own[0]["device_id"]
            ids.setdefault(host, []).append(device)
            found.append(Device(rank, Place(rank["rank_id"].number, host, str(device.number))))
    for fields in ids.values():
        refuse_twins(fields, "give every rank of a server its own device")
    return found


def counted(owner: Field, name: str, count: str, what: str) -> list[Field]:
    """The members of a list, of which another field must say how many there are."""
    found = list(owner[name])
    if owner[count].number != len(found):
        raise owner[count].wrong(f"is {owner[count].number}, but {name} has {len(found)} {what}(s): write that number")
    return found


def devices(server: Field) -> list[Device]:
    host = server["server_id"].host
    fields = list(server["device"])
    refuse_twins([field["device_id"] for field in fields], "list every device of a server once")
    return [Device(field, Place(field["rank_id"].number, host, str(field["device_id"].number))) for field in fields]


def refuse_twins(fields: list[Field], advice: str) -> None:
    """Refuses two fields with the same value, naming both."""
    seen: dict[int | str, Field] = {}
    for field in fields:
        value = field.host if field.name == "server_id" else field.number
        first = seen.setdefault(value, field)
        if first is not field:
            owner = first.path.rpartition(".")[0]
            raise field.wrong(f"is {value}, which {owner} has already: {advice}")


def refuse_gap(found: list[Device]) -> None:
    """Refuses ranks that are not 0, 1, 2, ..., naming the highest one."""
    last = max(found, key=lambda device: device.place.rank)
    if last.place.rank >= len(found):
        ranks = {device.place.rank for device in found}
        missing = next(rank for rank in range(len(found)) if rank not in ranks)
        raise last.field["rank_id"].wrong(
            f"is {last.place.rank}, but the table has {len(found)} device(s) and none with rank {missing}: number them "
            f"from 0 to {len(found) - 1}"
        )
