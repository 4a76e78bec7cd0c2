"""`python -m keras_par.launch --nproc_per_node N script.py`: the same as `keras-par run`."""

import sys

from keras_par.launch.cli import main

sys.exit(main(["run", *sys.argv[1:]]))
