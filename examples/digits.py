"""The handwritten digits bundled with scikit-learn as a tensorflow-datasets builder, for machines without MNIST."""

import tensorflow_datasets as tfds

NUM_TEST = 360


class HandwrittenDigits(tfds.core.GeneratorBasedBuilder):
    """1797 real handwritten digits of 8 x 8 pixels, 1437 to train on and 360 to test on.

    They are the test part of "Optical Recognition of Handwritten Digits", E. Alpaydin and C. Kaynak (1998).
    """

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, dl_manager):
        from sklearn.datasets import load_digits

        digits = load_digits()
        rows = list(zip((digits.images * 15.9375).astype("uint8")[..., None], digits.target, strict=True))
        return {"train": self._generate_examples(rows[NUM_TEST:]), "test": self._generate_examples(rows[:NUM_TEST])}

    def _generate_examples(self, rows):
        for number, (image, label) in enumerate(rows):
            yield number, {"image": image, "label": int(label)}


def prepare(data_dir: str) -> tfds.core.DatasetBuilder:
    """The builder, prepared below `data_dir` in four file shards a split if it was not before."""
    builder = HandwrittenDigits(data_dir=data_dir)
    builder.download_and_prepare(download_config=tfds.download.DownloadConfig(num_shards=4))
    return builder
