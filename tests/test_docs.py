"""The site says what the code is: its pictures are drawn anew, its reference is whole, its examples are run."""

import ast
import importlib
import importlib.util
import inspect
import re
import textwrap
from types import FunctionType

import pytest

from tests import example_tasks
from tests.jobs import start, write_script
from tests.ranks.pool import REPOSITORY

DOCS = REPOSITORY / "docs"
ROOMS = ("callbacks", "data", "ops", "ray", "schedules")
BY_ITSELF = {"keras_par.shutdown": 2, "keras_par.run": 1, "keras_par.ray.run": 1}  # jobs of so many processes


def drawer():
    spec = importlib.util.spec_from_file_location("draw", DOCS / "pictures" / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public_names() -> set[str]:
    """What a user may name, but for versions and rooms."""
    found = {f"keras_par.{name}" for name in importlib.import_module("keras_par").__all__ if name[0] != "_"}
    found |= {f"keras_par.{room}.{name}" for room in ROOMS for name in names_of(room)}
    return found - {f"keras_par.{room}" for room in ROOMS}


def names_of(room: str) -> list[str]:
    """The public names of a room: what a folder's module imports, and what a module lists."""
    module = REPOSITORY / "keras_par" / f"{room}.py"
    if module.exists():
        return ast.literal_eval(re.search(r"^__all__ = (\[.*?\])", module.read_text(), re.MULTILINE | re.DOTALL)[1])
    return re.findall(r"import \w+ as (\w+)", (REPOSITORY / "keras_par" / room / "__init__.py").read_text())


def test_pictures_are_those_that_the_code_draws():
    files = {path.stem: path.read_text() for path in (DOCS / "pictures").glob("*.svg")}
    assert files == drawer().pictures(), "run python docs/pictures/draw.py"


def test_the_reference_has_each_public_name_once():
    pages = "\n".join(path.read_text() for path in (DOCS / "reference").glob("*.md"))
    told = re.findall(r"^::: (\S+)$", pages, re.MULTILINE)
    assert len(told) == len(set(told)) and set(told) == public_names()
    assert len(told) > 30


@pytest.mark.parametrize("page", sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")))
def test_each_page_can_be_found(page):
    assert (REPOSITORY / "mkdocs.yml").read_text().count(f": {page}\n") == 1


def blocks() -> list[tuple[str, str]]:
    """The Python of all pages but the tutorials, which are run, and of public docstrings; with where each stands."""
    pages = [path for path in sorted(DOCS.rglob("*.md")) if path.parent.name != "tutorials"]
    texts = [(path.name, path.read_text()) for path in pages]
    texts += [(name, inspect.getdoc(value_of(name)) or "") for name in sorted(public_names())]
    fence = re.compile(r"^( *)```python\n(.*?)^\1```", re.DOTALL | re.MULTILINE)
    return [(where, textwrap.dedent(each[1])) for where, text in texts for each in fence.findall(text)]


def value_of(name: str):
    value = importlib.import_module("keras_par")
    for part in name.split(".")[1:]:
        value = getattr(value, part)
    return value


def test_examples_call_what_is_there():
    """Each `kp.` name exists, and takes the arguments that it is given."""
    num_calls = 0
    for where, text in blocks():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and re.fullmatch(r"kp(\.\w+)+", ast.unparse(node.func)):
                signature = inspect.signature(value_of(ast.unparse(node.func)))
                keywords = {each.arg: None for each in node.keywords if each.arg}
                try:
                    signature.bind_partial(*([None] * len(node.args)), **keywords)
                except TypeError as error:
                    raise AssertionError(f"{where}: {ast.unparse(node)}: {error}") from None
                num_calls += 1
    assert num_calls > 50


def public_values(**marks: pytest.MarkDecorator) -> list:
    """The public names, to be given to tests; those of a room may be marked."""
    room_of = {name: name.split(".")[1] for name in sorted(public_names())}
    return [
        pytest.param(name, id=name.removeprefix("keras_par."), marks=marks.get(room, ()))
        for name, room in room_of.items()
    ]


def section(text: str, title: str) -> str:
    """What a docstring has below a title, up to the next line that is not indented; empty if it has no such title."""
    found = re.search(rf"^{title}:\n((?:(?: {{4}}.*)?\n)+)", f"{text}\n", re.MULTILINE)
    return textwrap.dedent(found[1]) if found else ""


def example_of(name: str) -> str:
    """The code below the title "Example" of a public name's docstring."""
    found = re.fullmatch(r"```python\n(.*?)^```\n+", section(inspect.getdoc(value_of(name)), "Example"), re.S | re.M)
    assert found, f"{name} has no example"
    return found[1]


COSTS = re.compile(r"(?:^|\. )Costs\b[^.]*(?:collective|all-reduce|all-gather|all-to-all|broadcast)", re.MULTILINE)


@pytest.mark.parametrize("name", public_values())
def test_the_docstring_of_a_public_name_is_whole(name):
    value, text = value_of(name), inspect.getdoc(value_of(name))
    assert re.match(r"\S.*?\.(\s|$)", text, re.DOTALL), "it begins with a sentence"
    assert example_tasks.OUTCOME in example_of(name)
    signature = inspect.signature(value)
    told = re.findall(r"^\**(\w+): ", section(text, "Args"), re.MULTILINE)
    assert sorted(told) == sorted(signature.parameters)
    returned = section(text, "Returns")
    assert not inspect.isfunction(value) or signature.return_annotation is None or returned
    assert not re.search(r"\n\S", returned), "the site takes further lines for further values unless they are indented"
    assert not re.search(r"^ +raise ", inspect.getsource(value), re.MULTILINE) or section(text, "Raises")
    assert COSTS.search(text), "it says what it costs in collectives"


def test_signatures_say_what_may_be_given():
    hides = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    signatures = {name: inspect.signature(value_of(name)).parameters for name in public_names()}
    hidden = {name for name, each in signatures.items() if any(parameter.kind in hides for parameter in each.values())}
    assert hidden == {"keras_par.AutoParallel"}
    options = section(inspect.getdoc(value_of("keras_par.AutoParallel")), "Args").partition("**options: ")[2]
    own = {"layout_map", "batch_dim_name"}
    assert set(signatures["keras_par.ModelParallel"]) - own == set(re.findall(r"`(\w+)`", options))


def test_public_methods_have_docstrings():
    classes = [value_of(name) for name in sorted(public_names()) if inspect.isclass(value_of(name))]
    own = {base for each in classes for base in each.__mro__ if base.__module__.startswith("keras_par.")}
    methods = [
        (each, name)
        for each in sorted(own, key=lambda each: each.__name__)
        for name, value in vars(each).items()
        if (name[0] != "_" or name == "__call__") and isinstance(value, (FunctionType, classmethod, property))
    ]
    assert not [f"{each.__name__}.{name}" for each, name in methods if not inspect.getdoc(getattr(each, name))]
    assert len(methods) > 30


def test_a_terminal_completes_the_public_names():
    package = importlib.import_module("keras_par")
    first = {name.split(".")[1] for name in public_names()} | {"__version__", *ROOMS}
    assert set(dir(package)) == first
    for room in ROOMS:
        names = {name.split(".")[2] for name in public_names() if name.startswith(f"keras_par.{room}.")}
        assert names <= set(dir(getattr(package, room)))


@pytest.mark.parametrize(
    "name", public_values(ray=pytest.mark.cluster, run=pytest.mark.long, shutdown=pytest.mark.long)
)
def test_examples_give_what_they_tell(name, ranks, tmp_path):
    """On two ranks, or where ranks are started in one process, as a program that has imported keras, np, tf and kp.

    Behind `# -> ` stands the repr of the line's expression on each rank, or where ranks differ
    `# -> 0 on rank 0, 1 on rank 1`.
    """
    text = example_of(name)
    size = BY_ITSELF.get(name, 2)
    if name in BY_ITSELF:
        found = run_by_itself(name, size, text, tmp_path)
    else:
        found = ranks(2).run(example_tasks.run, name=name, text=text, folder=str(tmp_path))
    assert [(each["rank"], each["size"]) for each in found] == [(rank, size) for rank in range(size)]
    for each in found:
        assert len(each["outcomes"]) == text.count(example_tasks.OUTCOME)
        for line, told, value in each["outcomes"]:
            assert told == value, f"rank {each['rank']}: {line}"


def run_by_itself(name: str, size: int, text: str, folder) -> list[dict]:
    """What each rank finds in a job of its own, which an example may end, or in a process that may start one."""
    call = f"example_tasks.run({name!r}, {text!r}, {str(folder)!r})"
    script = f"import json; from tests import example_tasks; print('found: ' + json.dumps({call}), flush=True)"
    launcher = "mpirun" if size > 1 else "python"
    job = start(launcher, size, write_script(folder, script), RAY_ADDRESS="local")  # not another test's cluster
    assert job.status == 0, job.output
    return sorted(job.values("found: "), key=lambda each: each["rank"])
