"""The head of the report names what computed and which way sums went."""

import json

from keras_par.report import head, run_folder
from tests import run_folders


def test_what_ranks_tell_of_themselves_is_in_the_head(tmp_path):
    run_folders.describe(tmp_path, 2)
    about = [
        {"attempt": 0, "versions": {"tensorflow": "2.21.0", "keras": "3.15.1", "horovod": "0.28.1", "other": "1"}},
        {"attempt": 0, "model": "mlp", "strategy": "DataParallel", "sums": "Gradients are summed by Horovod."},
        {"attempt": 1, "model": "mlp", "strategy": "DataParallel", "sums": "Gradients are summed by Horovod."},
    ]
    run_folders.write_lines(tmp_path / "rank.0" / "about.jsonl", about)
    with (tmp_path / "rank.0" / "about.jsonl").open("a") as file:
        file.write(json.dumps({"versions": 3}) + "\n")
    run = run_folder.read(tmp_path)
    facts = dict(head.facts(run))
    assert facts["versions"] == "keras-par 0.2.0, Python 3.11.7, TensorFlow 2.21.0, Keras 3.15.1, Horovod 0.28.1"
    assert facts["strategy"] == "DataParallel (mlp)"
    assert facts["sums"] == "Gradients are summed by Horovod."
    assert run.notes == ["1 line of rank.0/about.jsonl could not be understood and is left out."]
