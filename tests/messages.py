"""Collects, without running anything, what the package may say to its users: errors, warnings, lines of the log."""

import ast
import functools
import itertools
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[1] / "keras_par"
PREFIX = re.compile(r"^keras-par(?: \S+)?: ")  # of errors, and of the commands' own
OPEN = "…"  # stands for what is known only when a message is given
# Functions that show what they are given, or raise it; of the first ones it is their first argument alone.
FIRST = {"warn", "warning", "info", "say", "_say", "error"}
ALL = {"refuse", "wrong", "damaged", "_damaged", "complain", "_complain", "panel", "gather_or_raise", "other_rows"}
ALL |= {"Finding", "Attempt", "Hang", "Outlook", "Look", "Plan", "add_note", "meet", "agree"}
ALL |= {"go_on", "_go_on", "_crash"}
HOLDERS = {"complaint", "_complaint"}  # names of what is said later
# What is caught within the package, a part of another message, or Python's own way to say a thing.
CAUGHT = {
    "… ranks",
    "… is another file here",
    "… of '…', whose variables the ranks divide",
    "… is no number",
    "… is no number from 0 to …",
    "… is no text",
    "… is no time",
    "… is no whole number",
    "a bucket that does not exist",
    "a message of … bytes",
    "an empty histogram has no percentile",
    "another program answers there",
    "bold red",
    "its file …",
    "no address",
    "module 'keras_par' has no attribute …",
    "the launcher cannot be reached at any of …: …",
}
WORDS = 2  # of its own that a message has at least
PHRASE = 3  # words of what is shown in place of a part that is open
MOST_WAYS = 12  # in which the parts of one message may be put together, before they are left open


@dataclass(frozen=True, order=True)
class Message:
    """One sentence, with what is known only later left open, and where the code has it."""

    text: str
    place: str = field(compare=False)


def messages(package: Path = PACKAGE) -> list[Message]:
    """All of them, each once."""
    found: dict[str, Message] = {}
    for path in sorted(package.rglob("*.py")):
        for node, scope in said_in(package, path):
            for text in map(shown, texts(node, scope)):
                if has_words(text) and " " in text and text not in CAUGHT:
                    found.setdefault(text, Message(text, f"{path.relative_to(package)}:{node.lineno}"))
    for path in sorted([*package.rglob("*.cc"), *package.rglob("*.h")]):
        for text in map(shown, texts_in_cpp(path.read_text())):
            if has_words(text):
                found.setdefault(text, Message(text, str(path.relative_to(package))))
    return sorted(found.values())


def shown(text: str) -> str:
    """A message as the page has it: on one line, without the package's name before it."""
    text = re.sub(r"%[-\d.]*[sdrgf]", OPEN, text)
    text = re.sub(r"\s+", " ", PREFIX.sub("", text)).strip()
    return re.sub(rf"{OPEN}(?:[ ,]*{OPEN})+", OPEN, text)


def has_words(text: str, least: int = WORDS) -> bool:
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= least


@dataclass(frozen=True)
class Scope:
    """Where an expression stands: in which statement of which blocks, in which package."""

    package: Path
    path: Path
    parents: dict[ast.AST, ast.AST]
    node: ast.AST

    def at(self, node: ast.AST) -> "Scope":
        return Scope(self.package, self.path, self.parents, node)


@functools.cache
def tree_of(path: Path) -> tuple[ast.Module, dict[ast.AST, ast.AST]]:
    """A module, and what each of its nodes is in."""
    tree = ast.parse(path.read_text())
    return tree, {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}


def said_in(package: Path, path: Path) -> Iterator[tuple[ast.expr, Scope]]:
    """The expressions of a module whose values are shown."""
    tree, parents = tree_of(path)
    for node in ast.walk(tree):
        found: list[ast.expr] = []
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call):
            found = node.exc.args[:1]
        elif isinstance(node, ast.Call) and (name_of(node.func) in FIRST or is_note(node)):
            found = node.args[:1]
        elif isinstance(node, ast.Call) and (name_of(node.func) in ALL or is_progress(node, path)):
            found = [*node.args, *(word.value for word in node.keywords)]
        elif isinstance(node, ast.Call) and name_of(node.func).endswith(("Error", "Interrupt")):
            found = node.args[:1]
        elif isinstance(node, ast.Assign) and is_complaint(node):
            found = [node.value]
        elif isinstance(node, ast.ClassDef):
            found = [each.value for method in node.body for each in returns_of(method) if method.name == "complaint"]
        elif is_text(node) and PREFIX.match(plain(node)) and not isinstance(parents[node], (ast.Expr, ast.JoinedStr)):
            found = [node]  # type: ignore[list-item]
        for each in found:
            yield each, Scope(package, path, parents, each)


def name_of(function: ast.expr) -> str:
    """The last name of `a.b.c`."""
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def is_note(node: ast.Call) -> bool:
    """True where a page of a run gets a note."""
    return ast.unparse(node.func).endswith("notes.append")


def is_progress(node: ast.Call, path: Path) -> bool:
    """True where a command says how far it is."""
    return ast.unparse(node.func) == "console.print" and path.stem == "install_horovod"


def is_complaint(node: ast.Assign) -> bool:
    """True where a sentence gets its name, or one of several values does."""
    targets = node.targets[0].elts if isinstance(node.targets[0], ast.Tuple) else node.targets
    return any(name_of(target) in HOLDERS for target in targets)


def returns_of(function: ast.stmt) -> list[ast.Return]:
    """The statements by which a function gives something."""
    if not isinstance(function, ast.FunctionDef):
        return []
    return [node for node in ast.walk(function) if isinstance(node, ast.Return) and node.value is not None]


def is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def plain(node: ast.AST) -> str:
    """The text of a string up to its first part that is open."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) and node.values else node
    return str(first.value) if isinstance(first, ast.Constant) else ""


def texts(node: ast.AST | None, scope: Scope, depth: int = 0) -> list[str]:
    """All that an expression may say, as far as it is made of strings; `OPEN` where that is not known."""
    if depth > 8 or node is None:
        return [OPEN]
    deeper = functools.partial(texts, scope=scope, depth=depth + 1)
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else [] if node.value is None else [OPEN]
    if isinstance(node, ast.JoinedStr):
        return joined(
            [deeper(part) if isinstance(part, ast.Constant) else filled(part, scope, depth) for part in node.values]
        )
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return joined([deeper(node.left), deeper(node.right)])
    if isinstance(node, ast.IfExp):
        return [*deeper(node.body), *deeper(node.orelse)]
    if isinstance(node, ast.BoolOp):
        values = node.values[-1:] if isinstance(node.op, ast.And) else node.values
        return [text for value in values for text in deeper(value)]
    if isinstance(node, (ast.List, ast.Tuple)):
        return [text for element in node.elts for text in deeper(element)]
    if isinstance(node, (ast.ListComp, ast.GeneratorExp)):
        return deeper(node.elt)
    if isinstance(node, (ast.Starred, ast.Subscript)):
        return deeper(node.value)
    if isinstance(node, ast.Name):
        return [text for value, where in values_of(node.id, scope) for text in texts(value, where, depth + 1)] or [OPEN]
    if isinstance(node, ast.Call):
        return called(node, scope, depth)
    return [OPEN]


def joined(parts: list[list[str]]) -> list[str]:
    """All ways to put one of each part behind the other; what there are too many ways for stays open."""
    while len(list(itertools.product(*parts))) > MOST_WAYS:
        longest = max(range(len(parts)), key=lambda number: len(parts[number]))
        parts = [[OPEN] if number == longest else part for number, part in enumerate(parts)]
    return ["".join(way) for way in itertools.product(*parts)]


def filled(part: ast.AST, scope: Scope, depth: int) -> list[str]:
    """What stands for a place in an f-string: sentences that are known, else `OPEN`."""
    assert isinstance(part, ast.FormattedValue)
    if part.conversion != -1 or part.format_spec is not None:
        return [OPEN]
    found = texts(part.value, scope, depth + 1)
    return found if found and all(has_words(text, PHRASE) for text in found) else [OPEN]


def called(node: ast.Call, scope: Scope, depth: int) -> list[str]:
    """What a call gives: what a function of the package returns, what is joined, or the text that a method changes."""
    name = name_of(node.func)
    if isinstance(node.func, ast.Attribute) and name in ("join", "removeprefix", "strip"):
        return texts(node.args[0] if name == "join" else node.func.value, scope, depth + 1)
    if name in ("next", "tuple"):
        return [text for argument in node.args for text in texts(argument, scope, depth + 1)]
    if name == "map" and node.args:
        return called(ast.Call(node.args[0], [], []), scope, depth)
    of_object = isinstance(node.func, ast.Attribute) and ast.unparse(node.func.value)
    home = imported(scope.path).get(of_object or name, "").split(".") if of_object != "self" else []
    stems = {*home[-2:], scope.path.stem} if not of_object or of_object == "self" else {*home[-1:]}
    found = [each for each in functions(scope.package).get(name, []) if each[1].path.stem in stems]
    return [text for value, where in found for text in texts(value, where, depth + 1)] or [OPEN]


@functools.cache
def imported(path: Path) -> dict[str, str]:
    """The full names of what a module imports."""
    found = [node for node in ast.walk(tree_of(path)[0]) if isinstance(node, ast.ImportFrom)]
    return {each.asname or each.name: f"{node.module}.{each.name}" for node in found for each in node.names}


@functools.cache
def functions(package: Path) -> dict[str, list[tuple[ast.expr, Scope]]]:
    """What the functions of each name return, where they say that it is text."""
    found: dict[str, list[tuple[ast.expr, Scope]]] = {}
    for path in sorted(package.rglob("*.py")):
        tree, parents = tree_of(path)
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef) and function.returns is not None:
                if "str" not in ast.unparse(function.returns).replace("dict[str", ""):
                    continue
                for node in returns_of(function):
                    found.setdefault(function.name, []).append((node.value, Scope(package, path, parents, node)))
    return found


def values_of(name: str, scope: Scope) -> list[tuple[ast.expr, Scope]]:
    """What a name may have been given last where an expression stands, within its function or as a constant."""
    found: list[tuple[ast.expr, Scope]] = []
    node = scope.node
    while node in scope.parents:
        parent = scope.parents[node]
        for block in ("body", "orelse", "handlers", "finalbody"):
            statements = getattr(parent, block, None)
            if not isinstance(statements, list) or node not in statements:
                continue
            for statement in reversed(statements[: statements.index(node)]):
                given = list(given_in(statement, name, scope))
                found += given
                is_added = given and all(isinstance(where.node, ast.Call) for _, where in given)
                if given and not is_added and (isinstance(statement, ast.Assign) or getattr(statement, "orelse", None)):
                    return found
        if isinstance(parent, ast.If):
            found += given_in(ast.Expr(parent.test), name, scope)
        if isinstance(parent, ast.FunctionDef) and name in names_of_arguments(parent):
            return found
        node = parent
    return found


def names_of_arguments(function: ast.FunctionDef) -> set[str]:
    return {each.arg for each in ast.walk(function.args) if isinstance(each, ast.arg)}


def given_in(statement: ast.stmt, name: str, scope: Scope) -> Iterator[tuple[ast.expr, Scope]]:
    """What a statement gives a name, or adds to the list that it is."""
    if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
        return
    for node in ast.walk(statement):
        where = scope.at(node)
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from ((value, where) for value in matched(target, node.value, name))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
            yield from ((value, where) for value in matched(node.target, node.value, name))
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == f"{name}.append":
            yield node.args[0], where


def matched(target: ast.expr, value: ast.expr, name: str) -> Iterator[ast.expr]:
    """The value that a target of this name gets, also one of several."""
    if isinstance(target, ast.Name) and target.id == name:
        yield value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        for inner, own in zip(target.elts, value.elts, strict=False):
            yield from matched(inner, own, name)


def texts_in_cpp(source: str) -> Iterator[str]:
    """What the kernels say when they fail."""
    yield from re.findall(r'"(keras-par: .+?)(?:\\n)?"', source)
    for found in re.finditer(r"(?:\bwrong_ =|\bfail\()(.+?);", source, re.DOTALL):
        parts = re.split(r"\s*\+\s*", re.sub(r"\s+", " ", found.group(1)).strip())
        yield "".join(ast.literal_eval(part.rstrip(")")) if part.startswith('"') else OPEN for part in parts)


if __name__ == "__main__":
    for message in messages():
        print(f"{message.place}\t{message.text}")
