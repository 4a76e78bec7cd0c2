"""Lets the programs that tests start sooner: without packages that only some need, and without looking for garbage.

Python runs this file at its start where the folder is in PYTHONPATH. Keras would import the packages, two seconds a
rank; they import as if they were not installed. Modules stay, and looking for garbage among them took a quarter of the
rest: Python looks as often as usual once Keras is there.
"""

import gc
import sys

sys.modules.update(dict.fromkeys(("matplotlib", "pandas", "scipy", "sklearn")))  # type: ignore[arg-type]
USUAL = gc.get_threshold()


def begin_when_keras_is_there(phase, _):
    if hasattr(sys.modules.get("keras"), "__version__"):
        gc.set_threshold(*USUAL)
        gc.callbacks.remove(begin_when_keras_is_there)


gc.callbacks.append(begin_when_keras_is_there)
gc.set_threshold(20_000, *USUAL[1:])
