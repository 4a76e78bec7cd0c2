"""A program that takes a lock, says so, and has it until its input ends.

python -m tests.lock_holder lock PATH
python -m tests.lock_holder run FOLDER
"""

import sys
from pathlib import Path

from keras_par.base import lock
from keras_par.launch import run_folder

if __name__ == "__main__":
    kind, path = sys.argv[1:]
    if kind == "lock":
        held = lock.take(Path(path))
        print("taken", flush=True)
    else:
        held = run_folder.RunFolder(Path(path))
        held.describe(of="the holder")
        print(held.path, flush=True)
    sys.stdin.read()
