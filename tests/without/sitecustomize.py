"""Takes Horovod away from the programs that have this folder in PYTHONPATH."""

import sys
from importlib.machinery import PathFinder


class WithoutHorovod:
    """Finds modules as Python does, but for one."""

    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name == "horovod" else PathFinder.find_spec(name, path, target)


sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutHorovod
