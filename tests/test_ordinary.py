"""Ordinary Keras scripts under a strategy: several fits, other models beside the trained one, saving and loading."""

import numpy as np

from tests import tasks
from tests.compare import relative_distance


def test_ordinary_use(ranks):
    results = ranks(2).run(tasks.ordinary_use)
    assert len(results) == 2
    for result in results:
        assert result["steps"] == 2 * 2 * 3
        assert result["callbacks"] == ["LambdaCallback", "History"]
        for features in result["features"]:
            assert features.shape == (21, 16)
            np.testing.assert_allclose(features, result["features"][-1], rtol=1e-5, atol=1e-6)
        assert result["alike"] == "ValueError"
    assert results[0]["metrics"] == results[1]["metrics"]


def test_a_saved_model_loads_and_trains_on(ranks, tmp_path):
    for result in ranks(2).run(tasks.save_and_load, path=str(tmp_path / "model.keras")):
        assert result["equal"]
        assert relative_distance(result["loaded"], result["model"]) < 1e-6


def test_a_keras_without_a_private_name_is_refused(ranks):
    for said in ranks(1).run(tasks.missing_private_name):
        assert "has no keras.src.trainers.trainer.Trainer._no_such_method, which keras-par relies on" in said
        assert "supports Keras >= 3.14" in said
