"""A tensorflow-datasets builder of a few numbered rows, for the tests of kp.data.load_tfds."""

import numpy as np
import tensorflow_datasets as tfds

NUM_TEST = 8


class NumberedRows(tfds.core.GeneratorBasedBuilder):
    """Rows of 8 features and a label, with their numbers: from 0 to train on, from 1000 to test on."""

    # As if not in a package: for those, tensorflow-datasets 4.9.10 imports importlib_resources without requiring it.
    __module__ = "numbers_builder"
    VERSION = tfds.core.Version("1.0.0")
    num_rows = 24
    num_generated = 0  # how often this process has made the rows
    broken = False

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "number": tfds.features.Scalar(np.int64),
                    "x": tfds.features.Tensor(shape=(8,), dtype=np.float32),
                    "y": tfds.features.Scalar(np.int64),
                }
            ),
            supervised_keys=("x", "y"),
        )

    def _split_generators(self, dl_manager):
        if self.broken:
            raise OSError("the server is away")
        NumberedRows.num_generated += 1
        return {"train": self._generate_examples(0, self.num_rows), "test": self._generate_examples(1000, NUM_TEST)}

    def _generate_examples(self, start, count):
        from tests.cases import rows

        for number, (x, y) in enumerate(zip(*rows(count, start), strict=True), start):
            yield number, {"number": number, "x": x, "y": y}


def write(data_dir: str, num_rows: int, num_files: int) -> str:
    """Prepares the data set below `data_dir` with so many rows to train on and file shards; returns its folder."""
    NumberedRows.num_rows = num_rows
    builder = NumberedRows(data_dir=data_dir)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=num_files))
    assert builder.info.splits["train"].num_shards == num_files
    return str(builder.data_dir)
