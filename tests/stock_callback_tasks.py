"""Trainings with Keras's own callbacks, run by the pools: each rank in a folder of its own, to see who writes."""

import contextlib
import io
import json
import os
import time
from pathlib import Path

import keras
import numpy as np

from tests.tasks import build, seed, strategy_scope


class CheckpointOfHead(keras.callbacks.ModelCheckpoint):
    """Saves by its own means what Keras's class decides to save."""

    def _save_model(self, epoch, batch, logs):
        filepath = self._get_file_path(epoch, batch, logs)
        if self._should_save_model(epoch, batch, logs, filepath):
            head = keras.Sequential([keras.layers.Input((16,)), self.model.layers[-1]])
            head.save_weights(filepath)


class CSVOfEvaluation(keras.callbacks.CSVLogger):
    """Adds a column that all ranks compute together, and a line of its own."""

    def on_epoch_end(self, epoch, logs=None):
        from tests.cases import rows

        x, y = rows(21, 8)
        logs["other_loss"] = self.model.evaluate(x, y, batch_size=10, verbose=0, return_dict=True)["loss"]
        super().on_epoch_end(epoch, logs)
        self.csv_file.write(f"# {len(self.keys)}\n")


class TensorBoardOfMore(keras.callbacks.TensorBoard):
    """Writes a scalar of its own beside Keras's, and one more log."""

    def on_epoch_end(self, epoch, logs=None):
        import tensorflow as tf

        with self._train_writer.as_default():
            tf.summary.scalar("own", 3.0 * epoch, step=epoch)
        super().on_epoch_end(epoch, {**logs, "more": 2.0 * epoch})


class SavingStop(keras.callbacks.EarlyStopping):
    """Saves by code of the user's own, which is left alone, when Keras's has stopped."""

    def on_train_end(self, logs=None):
        super().on_train_end(logs)
        self.model.save_weights("own.weights.h5")


class Interrupt(keras.callbacks.Callback):
    """Raises at one step of one epoch."""

    def __init__(self, epoch, step):
        super().__init__()
        self.at = epoch, step

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        if (self.epoch, batch) == self.at:
            raise InterruptedError("as the test wants it")


class SlowEnd(keras.callbacks.Callback):
    """Writes its file on rank 0, a second after training."""

    def on_train_end(self, logs=None):
        if rank_of(True) == 0:
            time.sleep(1)
            Path("late").write_text("all")


def rank_of(distributed: bool) -> int:
    """This process's rank, 0 in the plain process."""
    if not distributed:
        return 0
    import keras_par as kp

    return kp.rank()


@contextlib.contextmanager
def own_folder(folder: str, rank: int):
    """Works in `<folder>/rank<r>`, so that equal relative paths are files that the ranks do not share."""
    own = Path(folder) / f"rank{rank}"
    own.mkdir(parents=True, exist_ok=True)
    with contextlib.chdir(own):
        yield


def make(name: str, options: dict) -> keras.callbacks.Callback:
    kinds = (CheckpointOfHead, CSVOfEvaluation, TensorBoardOfMore, SavingStop, Interrupt, SlowEnd)
    own = {each.__name__: each for each in kinds}
    if name == "LearningRateScheduler":
        factor = options["factor"]
        return keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate * factor)
    return (own.get(name) or getattr(keras.callbacks, name))(**options)


def new_model(optimizer: str, dropout: bool = False) -> keras.Model:
    from tests.cases import crossentropy, network

    optimizers = {
        "adam": lambda: keras.optimizers.Adam(1e-2),
        "fast": lambda: keras.optimizers.SGD(1.5),
        "ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_momentum=0.9),
        "accumulating": lambda: keras.optimizers.Adam(1e-2, gradient_accumulation_steps=3),
    }
    if not dropout:
        return build(optimizer=optimizers[optimizer](), metrics=["accuracy"])
    model = network(keras.layers.Dropout(0.2))
    model.compile(optimizers[optimizer](), crossentropy())
    return model


def state(model: keras.Model) -> list:
    """Weights and optimizer state, without gradients that are being accumulated, of which each rank has its part."""
    variables = [v for v in model.optimizer.variables if not v.name.endswith("gradient_accumulator")]
    return [*model.get_weights(), *(np.asarray(variable.value) for variable in variables)]


def on_its_own(is_alone: bool):
    """Lets a rank train by itself."""
    if not is_alone:
        return contextlib.nullcontext()
    import keras_par as kp

    return kp.independent()


DECISIONS = ("best", "wait", "stopped_epoch", "best_epoch", "cooldown_counter")


def fit(
    folder: str,
    callbacks: list,
    distributed: bool = True,
    bound: bool | None = None,
    optimizer: str = "adam",
    only_rank: int | None = None,
    times: int = 1,
    **options,
) -> dict:
    """Trains with these callbacks.

    Args:
        folder: holds a folder for each rank, in which it trains.
        callbacks: (class name, arguments, whether it is on each rank).
        distributed: False in the plain process.
        bound: False for a model without a strategy, which each rank has for itself.
        optimizer: which of `new_model`.
        only_rank: the rank that alone has the callbacks.
        times: how often `fit` is called with the same callbacks.
        options: for `fit`.
    """
    from tests.cases import arrays, rows

    rank = rank_of(distributed)
    seed(distributed)
    with strategy_scope(distributed if bound is None else bound):
        model = new_model(optimizer)
    rates = []
    out = io.StringIO()
    data = {**arrays(), "epochs": 4, "verbose": 0, "validation_data": rows(33, 5), **options}
    with own_folder(folder, rank), contextlib.redirect_stdout(out), on_its_own(bound is False):
        made = [make(name, arguments) for name, arguments in callbacks]
        record = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: rates.append(float(model.optimizer.learning_rate))
        )
        given = made if only_rank in (None, rank) else []
        for _ in range(times):
            history = model.fit(**data, callbacks=[*given, record])
        files = sorted((str(path), path.stat().st_size) for path in Path().rglob("*") if path.is_file())
        evaluated = model.evaluate(*rows(33, 5), verbose=0, return_dict=True)
    return {
        "logs": history.history,
        "decisions": [{key: getattr(each, key) for key in DECISIONS if hasattr(each, key)} for each in made],
        "rates": rates,
        "weights": model.get_weights(),
        "state": state(model),
        "printed": out.getvalue(),
        "files": files,
        "evaluated": evaluated,
    }


def evaluate_with_tensorboard(folder: str, distributed: bool = True) -> None:
    """Evaluates and predicts with TensorBoard, outside of a fit."""
    from tests.cases import rows

    with strategy_scope(distributed):
        model = new_model("adam")
    with own_folder(folder, rank_of(distributed)):
        x, y = rows(33, 5)
        model.evaluate(x, y, verbose=0, callbacks=[keras.callbacks.TensorBoard("logs")])
        model.predict(x, verbose=0, callbacks=[keras.callbacks.TensorBoard("predicted")])


def resume(
    folder: str,
    distributed: bool = True,
    interrupt: tuple | None = (2, 1),
    damage: str | None = None,
    optimizer: str = "adam",
    dropout: bool = False,
    **options,
) -> dict:
    """Trains 4 epochs, with an interruption and a second call that goes on from the backup.

    Args:
        folder: holds a folder for each rank, in which it trains.
        distributed: False in the plain process.
        interrupt: epoch and step of it, None for none.
        damage: what happens to rank 0's backup, or to the other ranks' folders, in between.
        optimizer: which of `new_model`.
        dropout: True for a model with dropout.
        options: for BackupAndRestore.
    """
    from tests.cases import arrays

    rank = rank_of(distributed)
    data = {**arrays(), "epochs": 4, "shuffle": False, "verbose": 0}
    with own_folder(folder, rank):
        if interrupt is not None:
            seed(distributed)
            with strategy_scope(distributed):
                model = new_model(optimizer, dropout)
            backup = keras.callbacks.BackupAndRestore("backup", **options)
            with contextlib.suppress(InterruptedError):
                model.fit(**data, callbacks=[backup, Interrupt(*interrupt)])
                raise AssertionError("it was not interrupted")
            disturb(damage, rank)
        seed(distributed)
        with strategy_scope(distributed):
            model = new_model(optimizer, dropout)
        if interrupt is not None:
            model.set_weights([weight + 1.0 for weight in model.get_weights()])  # which the backup replaces
        begun = {}
        look = keras.callbacks.LambdaCallback(
            on_train_begin=lambda logs: begun.update(
                state=state(model),
                seeds=[np.asarray(v.value).tolist() for v in model.variables if "seed" in v.path],
            )
        )
        history = model.fit(**data, callbacks=[keras.callbacks.BackupAndRestore("backup", **options), look])
        return {
            "epochs": history.epoch,
            "begun": begun["state"],
            "seeds": begun["seeds"],
            "state": state(model),
            "files": sorted(str(path) for path in Path().rglob("*")),
        }


def disturb(damage: str | None, rank: int) -> None:
    if damage == "half a file" and rank == 0:
        Path("backup/latest.weights.h5").write_bytes(b"half a file")
    if damage == "another backup" and rank == 1:
        Path("backup").mkdir()
        Path("backup/training_metadata.json").write_text(json.dumps({"epoch": 3, "batch": 0}))
        Path("backup/latest.weights.h5").write_bytes(b"no weights at all")


def rates_by_chance(folder: str) -> dict:
    """The learning rates of a schedule that is another one on each rank."""
    from tests.cases import arrays

    rank = rank_of(True)
    with strategy_scope(True):
        model = new_model("adam")
    seen = []
    callbacks = [
        keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.01 * (epoch + 1) + 0.1 * rank),
        keras.callbacks.LambdaCallback(
            on_train_batch_begin=lambda batch, logs: seen.append(float(model.optimizer.learning_rate))
        ),
    ]
    model.fit(**{**arrays(), "epochs": 2}, verbose=0, callbacks=callbacks)
    return {"rates": seen, "weights": model.get_weights()}


def backup_on_one_rank(folder: str) -> None:
    """A BackupAndRestore that only rank 0 has."""
    from tests.cases import arrays

    with strategy_scope(True):
        model = new_model("adam")
    path = os.path.join(folder, "backup")
    callbacks = [keras.callbacks.BackupAndRestore(path)] if rank_of(True) == 0 else []
    model.fit(**arrays(), verbose=0, callbacks=callbacks)


def other_paths(folder: str, every_rank_writes: bool = False) -> dict:
    """CSVLoggers whose paths differ between ranks, and the warnings of that."""
    import warnings

    from tests.cases import arrays

    rank = rank_of(True)
    with strategy_scope(True):
        model = new_model("adam")
    callback = keras.callbacks.CSVLogger(os.path.join(folder, f"log{rank}.csv"))
    if every_rank_writes:
        callback.every_rank_writes = True
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model.fit(**arrays(), verbose=0, callbacks=[callback])
    return {"warnings": [str(each.message) for each in caught if "keras-par" in str(each.message)]}


def weights_of(path: str) -> list:
    """The weights of a saved model."""
    return keras.models.load_model(path).get_weights()
