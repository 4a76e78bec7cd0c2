"""The site says what the code is: its pictures are drawn anew, its reference has each public name."""

import ast
import importlib
import importlib.util
import inspect
import re
import textwrap

import pytest

from tests.ranks.pool import REPOSITORY

DOCS = REPOSITORY / "docs"
ROOMS = ("callbacks", "data", "ops", "schedules")


def drawer():
    spec = importlib.util.spec_from_file_location("draw", DOCS / "pictures" / "draw.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def public_names() -> set[str]:
    """What a user may name, but for versions and rooms."""
    found = {f"keras_par.{name}" for name in importlib.import_module("keras_par").__all__ if name[0] != "_"}
    for room in ROOMS:
        text = (REPOSITORY / "keras_par" / room / "__init__.py").read_text()
        found |= {f"keras_par.{room}.{name}" for name in re.findall(r"import \w+ as (\w+)", text)}
    return found - {f"keras_par.{room}" for room in ROOMS}


def test_pictures_are_those_that_the_code_draws():
    module = drawer()
    files = {path.stem for path in (DOCS / "pictures").glob("*.svg")}
    assert files == set(module.PICTURES)
    for name, draw in module.PICTURES.items():
        assert (DOCS / "pictures" / f"{name}.svg").read_text() == draw().svg(), "run python docs/pictures/draw.py"


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
