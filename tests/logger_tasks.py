"""Trainings with callbacks of other packages: MLflow's, and those of a package that counts as installed."""

import importlib
import logging
import os
import sys
from pathlib import Path

import keras

from tests.stock_callback_tasks import new_model, rank_of
from tests.tasks import seed, strategy_scope

PACKAGE = '''
import os
import keras

RANK = os.environ.get("OMPI_COMM_WORLD_RANK", "0")


class Logger(keras.callbacks.Callback):
    """Writes a line for each of its calls."""

    def __init__(self, folder):
        super().__init__()
        self.path = os.path.join(folder, f"log{RANK}")

    def write(self, line):
        with open(self.path, "a") as file:
            print(line, file=file)

    def set_model(self, model):
        super().set_model(model)
        self.write("model")

    def on_train_begin(self, logs=None):
        self.write("begin")

    def on_epoch_end(self, epoch, logs=None):
        self.write(f"epoch {epoch} {logs['loss']:.5f} {self.model.count_params()}")

    def on_train_batch_end(self, batch, logs=None):
        self.write(f"step {batch} {logs['loss']:.5f}")

    def on_test_end(self, logs=None):
        self.write(f"test {logs['loss']:.5f}")


class Halting(keras.callbacks.Callback):
    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1


class Patient(keras.callbacks.EarlyStopping):
    """Decides, so that it must do so everywhere."""

    calls = 0

    def on_epoch_end(self, epoch, logs=None):
        type(self).calls += 1
        super().on_epoch_end(epoch, logs)


class Evaluating(Logger):
    def on_epoch_end(self, epoch, logs=None):
        self.model.predict(keras.ops.zeros([6, 8]), verbose=0)
        self.write(f"predicted {epoch}")


class Checkpoint(keras.callbacks.ModelCheckpoint):
    """Does something of its own with the file that Keras has written."""

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        os.link(self.filepath, self.filepath + ".uploaded")
'''


def mlflow_fit(folder: str, distributed: bool = True) -> dict:
    """Trains with MLflow's callback, which logs to a store of the rank's own; returns the logs."""
    import mlflow
    from mlflow.keras import MlflowCallback

    from tests.cases import arrays, rows

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    rank = rank_of(distributed)
    mlflow.set_tracking_uri(f"file:{folder}/rank{rank}")
    seed(distributed)
    with strategy_scope(distributed):
        model = new_model("adam")
    data = {**arrays(), "epochs": 3, "verbose": 0, "validation_data": rows(33, 5)}
    try:
        history = model.fit(**data, callbacks=[MlflowCallback()])
    finally:
        mlflow.end_run()
    return history.history


def fit(folder: str, which: str, every_rank: bool = False, only_rank: int | None = None, epochs: int = 3) -> dict:
    """Trains with a callback of the installed package `otherlog`; returns the epochs, the log lines, and the calls."""
    from tests.cases import arrays, rows

    rank = rank_of(True)
    installed = Path(folder) / f"rank{rank}/site-packages/otherlog"
    installed.mkdir(parents=True)
    (installed / "__init__.py").write_text(PACKAGE)
    sys.path.insert(0, str(installed.parent))
    sys.modules.pop("otherlog", None)
    importlib.invalidate_caches()
    try:
        otherlog = importlib.import_module("otherlog")
    finally:
        sys.path.remove(str(installed.parent))
    callback = {
        "Logger": lambda: otherlog.Logger(folder),
        "Halting": otherlog.Halting,
        "Patient": lambda: otherlog.Patient(patience=9),
        "Evaluating": lambda: otherlog.Evaluating(folder),
        "Checkpoint": lambda: otherlog.Checkpoint(os.path.join(folder, f"{rank}.weights.h5"), save_weights_only=True),
    }[which]()
    if every_rank:
        callback.every_rank_writes = True
    said = Lines()
    logging.getLogger("keras_par").addHandler(said)
    seed(True)
    with strategy_scope(True):
        model = new_model("adam")
    callbacks: list[keras.callbacks.Callback] = [] if only_rank not in (None, rank) else [callback]
    data = {**arrays(), "epochs": epochs, "verbose": 0, "validation_data": rows(33, 5)}
    try:
        for _ in range(2 if which == "Logger" else 1):
            history = model.fit(**data, callbacks=callbacks)
    finally:
        logging.getLogger("keras_par").removeHandler(said)
    return {
        "epochs": history.epoch,
        "said": [line for line in said.lines if "runs on one rank" in line],
        "calls": otherlog.Patient.calls,
        "losses": history.history["loss"],
    }


def keep_best(folder: str) -> list:
    """Trains a model that ranks divide with the callback by which KerasTuner keeps weights, which it gives back."""
    from keras_tuner import Objective
    from keras_tuner.src.engine.tuner_utils import SaveBestEpoch

    import keras_par as kp
    from tests.cases import arrays

    path = os.path.join(folder, "best.weights.h5")
    seed(True)
    with kp.DataParallel(zero=3, zero_min_kb=0).scope():
        model = new_model("adam")
    model.fit(**{**arrays(), "verbose": 0}, callbacks=[SaveBestEpoch(Objective("loss", "min"), path)])
    weights = model.get_weights()
    for variable in model.trainable_variables:
        variable.assign(keras.ops.zeros_like(variable))
    model.load_weights(path)
    return [float(abs(after - before).max()) for after, before in zip(model.get_weights(), weights, strict=True)]


class Lines(logging.Handler):
    """Keeps what is logged."""

    def __init__(self):
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record):
        self.lines.append(record.getMessage())
