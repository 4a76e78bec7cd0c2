"""What the tutorials tell is done, and prints what they show."""

from pathlib import Path

import pytest

from tests.hosts.namespaces import hosts
from tests.hosts.openssh import NOT_INSTALLED, SERVER, servers
from tests.launcher import GONE_SECONDS
from tests.patience import comes_to_be, here
from tests.ranks.pool import REPOSITORY
from tests.tutorials import Change, Command, File, follow, require_printed, steps_of

FOLDER = REPOSITORY / "docs" / "tutorials"
PAGES = sorted(path.name for path in FOLDER.glob("[0-9]*.md"))
PAGES += [f"../{name}.md" for name in ("data-libraries", "not-faster", "tuning")]
OF_CLUSTERS = "7-a-cluster.md"
LONG = ("1-two-ranks.md",)  # the others are slow

PAGE = """
```python title="say.py"
print("loss 0.5")
```
Then:
```console
$ python say.py
loss 0.501
$ seq 3; \\
  echo took 5 s
1
...
took 7.5 s
```
```diff title="say.py"
-print("loss 0.5")
+loss = 0.25
+print("loss", loss)
```
```console
$ cat say.py
loss = 0.25
...
```
"""


def test_a_page_is_read_as_its_reader_does():
    file, say, count, change, _ = steps_of(PAGE)
    assert file == File("say.py", 'print("loss 0.5")\n')
    assert say == Command("python say.py", ("loss 0.501",))
    assert count.printed == ("1", "...", "took 7.5 s")
    assert change == Change("say.py", (('print("loss 0.5")\n', 'loss = 0.25\nprint("loss", loss)\n'),))


def test_a_page_that_tells_the_truth_is_followed(tmp_path):
    assert follow(PAGE, tmp_path) == 3


@pytest.mark.parametrize("line", ["loss 0.51", "loss 0.501\nmore", "Loss 0.501"])
def test_a_page_that_does_not_is_found_out(line):
    with pytest.raises(AssertionError):
        require_printed(Command("python say.py", tuple(line.splitlines())), "loss 0.5\n")


def test_lines_of_ranks_come_in_any_order():
    command = Command("keras-par run", ("[0] one", "[0] two", "[1] one", "end"))
    require_printed(command, "[1] one\n[0] one\n[0] two\nend\n")
    with pytest.raises(AssertionError):
        require_printed(command, "[1] one\n[0] two\n[0] one\nend\n")


def test_a_change_of_what_is_not_there_once_is_found_out():
    change = Change("say.py", (("a\n", "b\n"), ("c\n", "")))
    assert change.of("a\nc\nda\n") == "b\nda\n"
    for text in ("c\n", "a\na\nc\n"):
        with pytest.raises(AssertionError, match=r"say\.py has not once"):
            change.of(text)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(each, marks=pytest.mark.long if each in LONG else pytest.mark.slow)
        for each in PAGES
        if each != OF_CLUSTERS
    ],
)
def test_a_tutorial_tells_the_truth(name, tmp_path):
    assert follow((FOLDER / name).read_text(), tmp_path) > 0


def processes_of(hosts) -> dict[str, set[int]]:
    return {name: set(hosts.pids(name)) for name in hosts.names}


@pytest.mark.cluster
def test_the_tutorial_of_clusters_tells_the_truth(tmp_path):
    assert Path(SERVER).exists(), NOT_INSTALLED
    with hosts("node1", "node2") as pair, servers(pair):
        before = processes_of(pair)
        assert follow((FOLDER / OF_CLUSTERS).read_text(), tmp_path, pair.within("node1")) > 0
        assert comes_to_be(lambda: processes_of(pair) == before, here(GONE_SECONDS)), processes_of(pair)
