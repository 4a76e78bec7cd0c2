"""The rules of the house: imports go down, Keras's private parts stay in one room, importing the package is light."""

import ast
import fnmatch
import functools
import itertools
import re
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from keras_par.keras_patches.page import page
from keras_par.keras_patches.table.replacements import PATCHES
from keras_par.keras_patches.table.uses import USES, has, located
from tests.module_state import STATE
from tests.sweeps import ALONE, EVERY, LONG_EVERY

REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGE = REPOSITORY / "keras_par"
# The rooms from the ground up; those in one line do not import each other.
FLOORS = (
    ("base", "plan"),
    ("comm",),
    ("job", "sharding", "keras_patches.table"),
    ("sharding.rules", "keras_patches.inputs"),
    ("keras_patches.variables", "keras_patches.rows"),
    ("keras_patches.step",),
    ("keras_patches.update", "keras_patches.models"),
    ("keras_patches.files", "keras_patches.coordination"),
    ("keras_patches.trainer", "keras_patches"),
    ("distribution",),
    ("data", "checkpoint", "schedules", "ops", "searching"),
    ("callbacks", "planning"),
)
FLOOR_OF = {each: floor for floor, rooms in enumerate(FLOORS) for each in rooms}
# The rooms of the command line, and all that each may import.
SIDE = {"cluster": {"base"}, "agent": {"base", "cluster"}, "report": {"base"}, "doctor": {"base", "cluster"}}
SIDE |= {"launch": {"base", *SIDE}}
SIDE |= {"ray": {"base", "agent", "cluster", "launch"}}


def modules(folder: str) -> list[Path]:
    return sorted((REPOSITORY / folder).rglob("*.py"))


MODULES = modules("keras_par")


@functools.cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@functools.cache
def imports(path: Path) -> set[str]:
    """The full names that a module imports, wherever in it."""
    found = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def room(path: Path) -> str:
    """The folder that a module is in, "keras_patches.step" of one within that room; of `ops.py` its own name."""
    return room_of(name_of(path))


def room_of(name: str) -> str:
    """The room of a full name, empty of what is no room's."""
    _, first, *rest = [*name.split("."), "", ""]
    inner = f"{first}.{rest[0]}"
    return inner if (PACKAGE / first / rest[0]).is_dir() and rest[0] else first


def test_there_are_modules():
    assert len(MODULES) > 30


def test_imports_only_go_down():
    files = [path for path in MODULES if path != PACKAGE / "__init__.py"]
    pairs = [(path, name) for path in files for name in imports(path) if name.startswith("keras_par.")]
    assert not [f"{path} imports {name}" for path, name in pairs if not may_import(room(path), room_of(name))]


def may_import(here: str, there: str) -> bool:
    """True if a room may import what is in another, or in itself."""
    if there == here:
        return True
    return there in SIDE[here] if here in SIDE else FLOOR_OF[there] < FLOOR_OF[here]


def name_of(path: Path) -> str:
    """A module's full name."""
    parts = path.relative_to(REPOSITORY).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def test_no_files_import_each_other_in_a_circle():
    files = {name_of(path): path for folder in ("keras_par", "benchmarks", "tests") for path in modules(folder)}
    graph = {name: {module_of(each, files) for each in imports(path)} & set(files) for name, path in files.items()}
    try:
        TopologicalSorter({name: found - {name} for name, found in graph.items()}).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def module_of(name: str, files: dict[str, Path]) -> str:
    """The module that an imported name is, or is in."""
    return name if name in files else name.rpartition(".")[0]


def test_no_room_imports_the_package_itself():
    names = {name_of(path): path for path in MODULES}
    for path in MODULES:
        if path != PACKAGE / "__init__.py":
            assert "keras_par" not in {module_of(name, names) for name in imports(path)}, path


def test_private_parts_of_keras_stay_in_keras_patches():
    outside = [path for path in MODULES if room(path).partition(".")[0] != "keras_patches"]
    pairs = [(path, name) for path in outside for name in imports(path)]
    assert not [f"{path} imports {name}" for path, name in pairs if name.startswith("keras.src")]


PRIVATE = ("keras.src.", "tensorflow.python.", "tensorflow.core.", "tensorflow.compiler.")


def private_names(path: Path) -> set[str]:
    """The private names of Keras and TensorFlow that a module uses, however it has imported them."""
    tree = tree_of(path)
    bound = {"tf": "tensorflow", "keras": "keras"}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and f"{node.module}.".startswith(PRIVATE):
            bound |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    inner = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    chains = [node for node in ast.walk(tree) if isinstance(node, (ast.Attribute, ast.Name)) and id(node) not in inner]
    known = [(bound[first], rest) for first, *rest in map(chain_of, chains) if first in bound]
    found = [[*module.split("."), *itertools.filterfalse(is_protocol, rest)] for module, rest in known]
    names = {".".join(parts): any(part.startswith("_") for part in parts) for parts in found}
    return {name for name, is_private in names.items() if is_private or name.startswith(PRIVATE)}


def is_protocol(part: str) -> bool:
    """True for Python's own names, as `__init__`."""
    return part.startswith("__") and part.endswith("__") and part != "__internal__"


def chain_of(node: ast.expr) -> list[str]:
    """The names of `a.b.c`, the first empty if it is no name."""
    if isinstance(node, ast.Attribute):
        return [*chain_of(node.value), node.attr]
    return [node.id if isinstance(node, ast.Name) else ""]


def test_private_names_stand_in_the_table():
    listed = [each.target.replace(":", ".") + "." for each in (*PATCHES, *USES)]
    used = [(path, name) for path in MODULES for name in private_names(path)]
    assert not [f"{path} uses {name}" for path, name in used if not any(each.startswith(f"{name}.") for each in listed)]


def test_private_names_are_found_however_they_are_imported(tmp_path):
    path = tmp_path / "module.py"
    path.write_text(
        "import keras\nimport tensorflow as tf\nfrom keras.src import backend\n"
        "from keras.src.trainers.trainer import Trainer as T\n"
        "T._build(1)\nbackend.shape\nkeras.src.utils.x\ntf.__internal__.y(tf.shape(keras.__version__)).z\n"
    )
    names = {"keras.src.trainers.trainer.Trainer._build", "keras.src.backend.shape", "keras.src.utils.x"}
    assert private_names(path) == names | {"tensorflow.__internal__.y"}


def test_nothing_is_replaced_twice():
    there = [each for each in PATCHES if has(each.since, each.until)]
    targets = [located(each.target) for each in there]
    assert [a for a, b in itertools.permutations(targets, 2) if fnmatch.fnmatch(a, b)] == []


def test_what_is_replaced_stays_few():
    """Each name has to be looked after with each version of Keras and TensorFlow."""
    there = [each.target for each in PATCHES if has(each.since, each.until)]
    private = {name for name in (*there, *(each.target for each in USES)) if name.startswith("tensorflow.python.")}
    assert len(there) <= 100 and len(private) <= 12


def test_the_page_of_replacements_is_that_of_the_table():
    assert (REPOSITORY / "docs/keras_patches.md").read_text() == page(), "run python -m keras_par.keras_patches.page"


def test_lower_floors_know_neither_keras_nor_tensorflow():
    forbidden = {light: {"keras", "tensorflow", "horovod"} for light in ("base", "plan", *SIDE)}
    forbidden |= {"comm": {"keras"}, "job": {"keras"}}
    pairs = [(path, name) for path in MODULES for name in imports(path)]
    assert not [
        f"{path} imports {name}" for path, name in pairs if name.split(".")[0] in forbidden.get(room(path), set())
    ]


def test_every_module_opens_with_a_sentence():
    firsts = {path: (ast.get_docstring(tree_of(path)) or "").partition("\n")[0] for path in MODULES}
    assert not [str(path) for path, first in firsts.items() if not first.endswith(".")]


def test_public_classes_have_docstrings():
    classes = [(path, node) for path in MODULES for node in tree_of(path).body if isinstance(node, ast.ClassDef)]
    public = [(path, node) for path, node in classes if not node.name.startswith("_")]
    assert not [f"{path}: {node.name}" for path, node in public if not ast.get_docstring(node)]


def test_importing_the_package_loads_nothing_heavy():
    """But what `typing` loads, some 30 modules."""
    script = "import sys; before = set(sys.modules); import keras_par; print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    loaded = set(result.stdout.split())
    assert "keras_par.base.after_import" in loaded and len(loaded) < 45, loaded
    assert not loaded & {"tensorflow", "keras", "horovod", "numpy", "importlib.metadata", "asyncio"}


def test_every_public_name_can_be_imported_and_is_documented():
    script = (
        "import keras_par, inspect\n"
        "for name in keras_par.__all__:\n"
        "    value = getattr(keras_par, name)\n"
        "    assert name == '__version__' or inspect.getdoc(value), name\n"
        "print(len(keras_par.__all__))"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(result.stdout) > 10


def state_of(path: Path) -> set[str]:
    """The names of a module that hold what may change while it runs: rebound, of a context, containers, caches."""
    tree = tree_of(path)
    found = {name for node in ast.walk(tree) if isinstance(node, ast.Global) for name in node.names}
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    fixed = ("frozen=True", "NamedTuple")
    changing = {node.name for node in classes if not any(word in ast.unparse(node).partition(":")[0] for word in fixed)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and any("cache" in ast.unparse(each) for each in node.decorator_list):
            found.add(node.name)
        if not isinstance(node, (ast.Assign, ast.AnnAssign)) or node.value is None:
            continue
        [target] = node.targets if isinstance(node, ast.Assign) else [node.target]
        value, name = ast.unparse(node.value), ast.unparse(target)
        holds = value in ("[]", "{}", "set()", "dict()") or value.startswith("defaultdict")
        holds = holds or value.partition("(")[0] in changing
        if holds or re.match(r"(contextvars\.)?ContextVar|weakref\.|threading\.(local|Lock|RLock)|queue\.", value):
            found.add(name)
    return found


def test_the_state_of_modules_is_listed():
    found = {f"{path.relative_to(PACKAGE)}: {name}" for path in MODULES for name in state_of(path)}
    rows = (row.partition(": ") for row in STATE)
    assert found == {f"{path}: {name}" for path, _, names in rows for name in names.split(", ")}


def test_sweeps_are_of_tests_that_are_there():
    for name in {**EVERY, **LONG_EVERY, **ALONE}:
        file, _, function = name.partition("::")
        [path] = (REPOSITORY / "tests").rglob(file)
        assert f"def {function}(" in path.read_text(), name
