"""Where ranks run: hosts, host files, rank tables and SLURM's variables, read right or refused with one sentence."""

import copy
import json
import socket
import sys

import pytest

from keras_par.cluster import reach
from keras_par.cluster.hosts import ClusterError, Host, Place, parse_hosts, places, read_hostfile
from keras_par.cluster.rank_table import read_rank_table
from keras_par.cluster.slurm import slurm_hosts


def refused(function, *arguments) -> str:
    """The sentence with which `function` refuses `arguments`."""
    with pytest.raises(ClusterError) as caught:
        function(*arguments)
    sentence = str(caught.value)
    assert sentence.startswith("keras-par: ") and sentence.endswith(".")
    assert "\n" not in sentence
    return sentence


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a:2,b", [("a", 2), ("b", 1)]),
        ("localhost:16", [("localhost", 16)]),
        (" 10.0.0.1:4 , node-2.site.org:08 ", [("10.0.0.1", 4), ("node-2.site.org", 8)]),
        ("a,a,b:2,a:3", [("a", 5), ("b", 2)]),
    ],
)
def test_hosts_are_read(text, expected):
    assert parse_hosts(text) == [Host(*host) for host in expected]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "-H '': '' is no host name"),
        ("a:2,,b", "-H 'a:2,,b': '' is no host name"),
        ("a:0", "host a has '0' slots: write a whole number of at least 1"),
        ("b:2,a:two", "host a has 'two' slots"),
        ("a:", "host a has '' slots"),
        ("a:-1", "host a has '-1' slots"),
        ("a:1:2", "host a has '1:2' slots"),
        ("a:²", "host a has '²' slots"),
        ("-oProxyCommand=x", "'-oProxyCommand=x' is no host name"),
        ("a b:2", "'a b' is no host name"),
        ("a;reboot:2", "'a;reboot' is no host name"),
        ("$(x)", "'$(x)' is no host name"),
    ],
)
def test_what_is_no_host_is_refused(text, said):
    assert said in refused(parse_hosts, text)


def test_a_host_file_is_read(tmp_path):
    path = tmp_path / "hosts"
    path.write_text("# the cluster\n\na slots=2\n b\tslots = 4 max_slots=8 # big\nc:3\nd\na max-slots=4\n")
    assert read_hostfile(path) == [Host("a", 3), Host("b", 4), Host("c", 3), Host("d", 1)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a\nb slots=x", " line 2: host b has 'x' slots"),
        ("a slots=0", " line 1: host a has '0' slots"),
        ("\n# two\na cores=2", " line 3: 'cores=2' is not understood: write 'host slots=N'"),
        ("a 2", " line 1: '2' is not understood"),
        ("a slots=1 slots=2", " line 1: 'slots=2' is not understood"),
        ("a:1 slots=2", " line 1: host a has '1:2' slots"),
        ("slots=2", " line 1: 'slots=2' is no host name"),
        ("# nobody\n", " names no host"),
        ("", " names no host"),
    ],
)
def test_a_wrong_host_file_is_refused_with_its_line(text, said, tmp_path):
    path = tmp_path / "my hosts"
    path.write_text(text)
    assert f"{path}{said}" in refused(read_hostfile, path)


@pytest.mark.parametrize("reader", [read_hostfile, read_rank_table])
def test_a_file_that_cannot_be_read_is_refused(reader, tmp_path):
    assert f"{tmp_path / 'gone'} cannot be read (No such file or directory)" in refused(reader, tmp_path / "gone")
    assert f"{tmp_path} cannot be read (Is a directory)" in refused(reader, tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    assert "binary cannot be read (it is no text in UTF-8)" in refused(reader, tmp_path / "binary")


def test_ranks_fill_host_after_host():
    hosts = [Host("a", 2), Host("b", 1), Host("c", 5)]
    assert places(4, hosts) == [Place(0, "a"), Place(1, "a"), Place(2, "b"), Place(3, "c")]
    assert places(1, hosts) == [Place(0, "a")]
    assert [place.rank for place in places(8, hosts)] == list(range(8))


def test_more_ranks_than_slots_are_refused():
    sentence = refused(places, 9, [Host("a", 2), Host("b", 6)])
    assert "9 ranks do not fit into the 8 slot(s) of a:2, b:6: start at most 8" in sentence
    assert "h3:1, ...:" in refused(places, 9, [Host(f"h{number}", 1) for number in range(6)])


def table() -> dict:
    """Two servers with three devices, ranks not in the order of the file, numbers as texts and as numbers."""
    return {
        "version": "1.0",
        "server_count": "2",
        "server_list": [
            {
                "server_id": "10.0.0.2",
                "device": [
                    {"device_id": "0", "device_ip": "192.1.27.6", "rank_id": "2"},
                    {"device_id": 3, "rank_id": 0},
                ],
                "host_nic_ip": "reserve",
            },
            {"server_id": "node-1", "device": [{"device_id": "0", "rank_id": "1"}]},
        ],
        "status": "completed",
    }


def written(tmp_path, content):
    path = tmp_path / "table.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_rank_table_is_read(tmp_path):
    expected = [Place(0, "10.0.0.2", "3"), Place(1, "node-1", "0"), Place(2, "10.0.0.2", "0")]
    assert read_rank_table(written(tmp_path, table())) == expected
    assert read_rank_table(written(tmp_path, "\ufeff" + json.dumps(table()))) == expected


def field_paths(value, path=()):
    """The path of every field of a table that keras-par reads."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in items:
        if name not in ("device_ip", "host_nic_ip"):
            yield (*path, name)
            yield from field_paths(each, (*path, name))


def shown(path) -> str:
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).lstrip(".")


def parent(content, path):
    for part in path[:-1]:
        content = content[part]
    return content


ALL_PATHS = list(field_paths(table()))


@pytest.mark.parametrize("path", [path for path in ALL_PATHS if isinstance(path[-1], str)], ids=shown)
def test_every_missing_field_is_named(path, tmp_path):
    content = table()
    del parent(content, path)[path[-1]]
    assert f"table.json: {shown(path)} is missing: it must be " in refused(read_rank_table, written(tmp_path, content))


@pytest.mark.parametrize("path", ALL_PATHS, ids=shown)
@pytest.mark.parametrize("value", [None, True, -1, 1.5, "one two", "", [], {}, 10**400], ids=str)
def test_every_wrong_type_is_named(path, value, tmp_path):
    content = table()
    parent(content, path)[path[-1]] = copy.deepcopy(value)
    sentence = refused(read_rank_table, written(tmp_path, content))
    missing_inside = f"table.json: {shown(path)}." if value == {} else "nothing"
    assert f"table.json: {shown(path)} is " in sentence or missing_inside in sentence


FIRST_DEVICE = "server_list[0].device[0]"


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            f"{FIRST_DEVICE}.rank_id",
            7,
            "7, but the table has 3 device(s) and none with rank 2: number them from 0 to 2.",
        ),
        (
            "server_list[0].device[1].rank_id",
            "2",
            f"2, which {FIRST_DEVICE} has already: give every device its own rank.",
        ),
        ("server_list[1].device[0].rank_id", 0, "0, which server_list[0].device[1] has already"),
        (
            "server_list[0].device[1].device_id",
            "0",
            f"0, which {FIRST_DEVICE} has already: list every device of a server once.",
        ),
        ("server_list[1].server_id", "10.0.0.2", "10.0.0.2, which server_list[0] has already"),
        ("server_list[0].server_id", "-oX", "'-oX', but must be a host's name or IPv4"),
        ("server_count", 3, "3, but server_list has 2 server(s): write that number."),
        ("version", "0.1", "'0.1', but must be the text '1.0'."),
        ("status", "initializing", "'initializing', but must be the text 'completed'."),
    ],
)
def test_a_wrong_value_is_named(name, value, said, tmp_path):
    content = table()
    [path] = [each for each in ALL_PATHS if shown(each) == name]
    parent(content, path)[path[-1]] = value
    path = written(tmp_path, content)
    assert f"keras-par: {path}: {name} is {said}" in refused(read_rank_table, path)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"version": "1.0",\n "server_count": }', "table.json line 2 is not JSON (Expecting value)"),
        ("", "table.json line 1 is not JSON (Expecting value)"),
        ("[" * 100_000, "table.json is not JSON ("),
        ('{"version": ' + "1" * 5000 + "}", "table.json is not JSON ("),
        ("[1]", "table.json: the table is a list, but must be an object with the field 'version'"),
        ("7", "table.json: the table is 7, but must be an object"),
    ],
    ids=["comma", "empty", "deep", "long number", "list", "number"],
)
def test_what_is_no_table_is_refused(text, said, tmp_path):
    assert said in refused(read_rank_table, written(tmp_path, text))


def program(folder, name, text):
    """Puts an executable that runs Python `text` into `folder`, and returns the environment that finds only it."""
    path = folder / name
    path.write_text(f"#!{sys.executable} -S\nimport os, sys\n{text}\n")
    path.chmod(0o755)
    return {"PATH": str(folder)}


SCONTROL = """
assert sys.argv[1:3] == ["show", "hostnames"], sys.argv
print("\\n".join(f"node{number}" for number in range(sys.argv[3].count(","))))
"""


def test_outside_of_an_allocation_slurm_has_no_hosts():
    assert slurm_hosts({}) is None
    assert slurm_hosts({"SLURM_TASKS_PER_NODE": "2"}) is None


@pytest.mark.parametrize(
    ("tasks", "expected"), [("2(x3),1", [2, 2, 2, 1]), ("4(x4)", [4] * 4), ("1,2,3,4", [1, 2, 3, 4])]
)
def test_an_allocation_is_read(tasks, expected, tmp_path):
    variables = program(tmp_path, "scontrol", SCONTROL)
    variables |= {"SLURM_JOB_NODELIST": ";touch x,,,,", "SLURM_TASKS_PER_NODE": tasks}
    assert slurm_hosts(variables) == [Host(f"node{number}", slots) for number, slots in enumerate(expected)]


@pytest.mark.parametrize(
    ("script", "tasks", "said"),
    [
        (SCONTROL, "2", "SLURM_JOB_NODELIST='a,b,' has 2 host(s) but SLURM_TASKS_PER_NODE='2' has 1: name"),
        (SCONTROL, "two", "SLURM_TASKS_PER_NODE='two' is not a list like '2(x3),1': allocate with --ntasks-per-node"),
        (SCONTROL, None, "SLURM_TASKS_PER_NODE='' is not a list"),
        (
            "sys.exit('scontrol: error:\\nInvalid hostlist')",
            "2(x2)",
            "'scontrol show hostnames a,b,' failed (Invalid hostlist)",
        ),
        ("sys.exit(3)", "2(x2)", "failed (status 3): name the hosts by -H"),
        (None, "2(x2)", "scontrol, which names the hosts of SLURM_JOB_NODELIST='a,b,', is not on PATH"),
    ],
)
def test_a_broken_allocation_is_refused(script, tasks, said, tmp_path):
    variables = program(tmp_path, "scontrol" if script else "other", script or "")
    variables |= {"SLURM_JOB_NODELIST": "a,b,"} | ({"SLURM_TASKS_PER_NODE": tasks} if tasks else {})
    assert said in refused(slurm_hosts, variables)


def test_this_machine_is_known_by_its_names_and_addresses():
    for host in ("localhost", "127.0.0.1", "127.0.0.7", socket.gethostname()):
        assert reach.is_local(host), host
    for host in ("203.0.113.77", "no-such-host.invalid", "a" * 80, "a..b"):
        assert not reach.is_local(host), host


SSH = """
with open(os.path.join(os.path.dirname(sys.argv[0]), "log"), "a") as log:
    print(*sys.argv[1:], file=log)
host = sys.argv[-2]
if host.startswith("bad"):
    print(f"Warning: something else\\nssh: connect to host {host} port 22: No route to host\\r", file=sys.stderr)
sys.exit(255 if host.startswith(("mute", "bad")) else 1 if host.startswith("bare") else 0)
"""


@pytest.fixture
def ssh_log(tmp_path, monkeypatch):
    """The file to which a stand-in for ssh writes its arguments; hosts named bad and mute are out of its reach."""
    monkeypatch.setenv("PATH", program(tmp_path, "ssh", SSH)["PATH"])
    return tmp_path / "log"


def test_hosts_are_reached_by_ssh_once_each(ssh_log):
    reach.require_reachable(["good1.invalid", "good2.invalid", "localhost", "good1.invalid"])
    assert sorted(ssh_log.read_text().splitlines()) == [
        "-o BatchMode=yes -o ConnectTimeout=5 good1.invalid test -x " + sys.executable,
        "-o BatchMode=yes -o ConnectTimeout=5 good2.invalid test -x " + sys.executable,
    ]


def test_the_first_host_out_of_reach_is_named(ssh_log):
    sentence = refused(reach.require_reachable, ["good.invalid", "mute.invalid", "bad.invalid"])
    assert "host mute.invalid cannot be reached (ssh ended with status 255): check its name" in sentence
    sentence = refused(reach.require_reachable, ["good.invalid", "bad.invalid", "mute.invalid"])
    assert "host bad.invalid cannot be reached (ssh: connect to host bad.invalid port 22: No route to host)" in sentence
    assert "'ssh bad.invalid true' works without a password" in sentence


def test_a_host_without_this_python_is_named(ssh_log):
    sentence = refused(reach.require_reachable, ["good.invalid", "bare.invalid"])
    assert f"host bare.invalid has no {sys.executable}: install the same environment there at the same path" in sentence


def test_local_hosts_need_no_ssh(ssh_log):
    reach.require_reachable(["localhost", "127.0.0.1"])
    reach.require_reachable([])
    assert not ssh_log.exists()


def test_a_missing_ssh_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "host far.invalid cannot be reached (ssh is not installed here)" in refused(
        reach.require_reachable, ["far.invalid"]
    )
