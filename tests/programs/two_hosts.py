"""Trains on ranks of which each two believe to be on a host of their own; writes how sums went, and the weights.

two_hosts.py RANKS_OF_FIRST_HOST FOLDER STAGE ...

With a stage of ZeRO but 0, the ranks of a host divide a replica; with "3 all" all ranks divide the one that there is.
"""

import json
import os
import socket
import sys
from pathlib import Path

import keras

rank = int(os.environ["OMPI_COMM_WORLD_RANK"])
is_first = rank < int(sys.argv[1])
socket.gethostname = lambda: "first" if is_first else "second"

import keras_par as kp  # noqa: E402
from keras_par.comm import world  # noqa: E402
from tests import reduce_by_tasks  # noqa: E402

kp.init()


def train(stage):
    keras.utils.set_random_seed(3)
    zero, _, over = stage.partition(" ")
    if zero != "0":
        world.current().local_size = 2  # of which Horovod has asked MPI
    options = {"zero": int(zero), "zero_min_kb": 0, "zero_ranks": None if over else "host"} if zero != "0" else {}
    with kp.DataParallel(**options).scope():
        model = reduce_by_tasks.build()
    model.fit(**reduce_by_tasks.data(), epochs=2, verbose=0)
    described = kp.describe(model)
    calls = described.collectives["train_step"]
    return {
        "size": kp.size(),
        "sent": [[call.kind, call.route, list(call.ranks), call.num_bytes] for call in calls],
        "text": " ".join(str(described).split()),
        "weights": [each.tolist() for each in reduce_by_tasks.weights(model)],
    }


results = {stage: train(stage) for stage in sys.argv[3:]}
Path(sys.argv[2], f"{kp.rank()}.json").write_text(json.dumps(results))
