"""Lets the programs that tests start do without packages that only some need: Keras imports them, two seconds a rank.

Python runs this file at its start where the folder is in PYTHONPATH. They import as if they were not installed.
"""

import sys

sys.modules.update(dict.fromkeys(("matplotlib", "pandas", "scipy", "sklearn")))  # type: ignore[arg-type]
