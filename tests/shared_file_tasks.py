"""Files that all ranks of a host want to make, and what they print; some of it runs in plain Keras, too."""

import contextlib
import io
import sys
import time
import zipfile
from pathlib import Path
from unittest import mock

import keras
import tensorflow as tf

from tests.cases import arrays, rows
from tests.tasks import build, strategy_scope


def write_cache(path: str, first: int) -> list[int]:
    """Five numbers from `first` on, read from a dataset that is cached in a file, twice."""
    data = tf.data.Dataset.range(first, first + 5).cache(path)
    return [int(number) for _ in range(2) for number in data]


def fit_cached(path: str, distributed: bool) -> list:
    """Weights after two epochs on a dataset that is cached in a file at one path."""
    keras.utils.set_random_seed(7)
    with strategy_scope(distributed):
        model = build()
    x, y = rows(43)
    data = tf.data.Dataset.from_tensor_slices((x, y)).cache(path)
    for _ in range(2):
        model.fit(data.batch(8), epochs=2, verbose=0)
    return model.get_weights()


def cache_shares(path: str) -> list[int]:
    """This rank's share of five numbers, cached at one path."""
    import keras_par as kp

    data = kp.data.shard(tf.data.Dataset.range(5)).cache(path)
    return [int(number) for _ in range(2) for number in data]


def write_archive(path: Path, num_files: int = 30) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(num_files):
            archive.writestr(f"data/{number}.txt", str(number) * 1000)


def get_archive(archive: str, folder: str, ranks: list[int] | None = None, times: int = 1, **options) -> dict:
    """What a rank finds after `get_file`, whose download takes a second, and how often it has downloaded itself.

    Args:
        archive: path of a zip file.
        folder: Keras's cache.
        ranks: those that ask, None for all.
        times: how often each asks.
    """
    from keras.src.utils import file_utils

    import keras_par as kp

    if ranks is not None and kp.rank() not in ranks:
        return {}
    downloads, extractions = [], []
    retrieve, extract = file_utils.urlretrieve, file_utils.extract_archive

    def slowly(url, path, hook):
        downloads.append(url)
        content = Path(archive).read_bytes()
        with open(path, "wb") as file:
            for part in (content[:100], content[100:]):
                file.write(part)
                file.flush()
                time.sleep(0.5)

    def counted(*arguments):
        extractions.append(1)
        return extract(*arguments)

    patches = mock.patch.multiple(file_utils, urlretrieve=slowly, extract_archive=counted)
    with patches:
        for _ in range(times):
            path = keras.utils.get_file("pack", Path(archive).as_uri(), extract=True, cache_dir=folder, **options)
    assert file_utils.urlretrieve is retrieve
    found = sorted(Path(path).rglob("*.txt"))
    complete = all(file.read_text() == file.stem * 1000 for file in found)
    return {"downloads": len(downloads), "extractions": len(extractions), "files": len(found), "complete": complete}


@contextlib.contextmanager
def printed():
    """All that this process prints, as if its output were a new terminal."""
    out = io.StringIO()
    with mock.patch.object(sys, "stdout", out), mock.patch.object(sys, "__stdout__", out):
        yield out


def prints() -> dict:
    """What a rank prints and gets, call by call."""
    with strategy_scope(True):
        model = build()
    data = {**arrays(), "epochs": 1}
    found: dict = {}
    calls = {
        "summary": model.summary,
        "fit 1": lambda: model.fit(**data, verbose=1),
        "fit 2": lambda: model.fit(**data, verbose=2),
        "fit auto": lambda: model.fit(**data),
        "evaluate": lambda: model.evaluate(data["x"], data["y"], verbose=1),
        "predict": lambda: model.predict(data["x"], verbose=1),
    }
    for name, call in calls.items():
        with printed() as out:
            call()
        found[name] = out.getvalue()
    import keras_par as kp

    with printed() as out, kp.independent():
        model.summary()
    found["independent"] = out.getvalue()
    lines: list[str] = []
    model.summary(print_fn=lambda text, **kwargs: lines.append(text))
    with contextlib.redirect_stdout(io.StringIO()) as caught:
        model.summary()
    return found | {"print_fn": "\n".join(lines), "caught": caught.getvalue()}
