"""Calls something behind the import of a package that may never be imported, or only later."""

import importlib.util
import sys
from collections.abc import Callable
from types import ModuleType


def after_import(name: str, call: Callable[[ModuleType], object]) -> None:
    """Has something called with a package once that is imported; does nothing if it has been."""
    if name not in sys.modules:
        sys.meta_path.insert(0, Awaiting(name, call))


class Awaiting:
    """Finds one package as the others do, and makes a call behind its first import; see `after_import`."""

    def __init__(self, name: str, call: Callable[[ModuleType], object]):
        self._name, self._call = name, call
        self._is_asking = False

    def find_spec(self, name, path=None, target=None):
        if name != self._name or self._is_asking:
            return None
        self._is_asking = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._is_asking = False
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module

            def execute_and_call(module: ModuleType) -> None:
                execute(module)
                if self in sys.meta_path:
                    sys.meta_path.remove(self)
                    self._call(module)

            spec.loader.exec_module = execute_and_call  # type: ignore[method-assign]
        return spec
