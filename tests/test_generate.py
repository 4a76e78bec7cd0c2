"""A model that the ranks divide writes the text of one process, and files of its adapters are one process's."""

import math

import h5py
import numpy as np
import pytest
from safetensors.numpy import load_file

from tests import generate_tasks as tasks
from tests.ranks.pool import together

TOLERANCE = 1e-6  # Keras's adapters are float32, in a model of float64, too
SIZES = {"zero": 2, "layouts": 2, "zero and layouts": 4}


@pytest.mark.parametrize(
    "sampled", ["top_k", "greedy", "random", "beam", pytest.param("contrastive", marks=pytest.mark.long)]
)
@pytest.mark.parametrize("divided", SIZES)
def test_text_is_one_processs(divided, sampled, ranks, plain):
    [alone], results = together(
        plain.begin(tasks.generate, divided="plain", sampled=sampled),
        ranks(SIZES[divided]).begin(tasks.generate, divided=divided, sampled=sampled),
    )
    assert len({tuple(text) for text in alone["texts"][0]}) > 1
    for found in results:
        assert found["size"] == SIZES[divided]
        assert found["texts"] == alone["texts"]


@pytest.mark.parametrize(
    ("sampled", "rows"),
    [
        ("greedy", 4),
        pytest.param("beam", 12, marks=pytest.mark.long),
        pytest.param("contrastive", 12, marks=pytest.mark.long),
    ],
)
def test_a_cache_goes_from_turn_to_turn_divided_by_heads(sampled, rows, ranks):
    for found in ranks(2).run(tasks.cache, divided="layouts", sampled=sampled):
        assert found["size"] == 2
        assert found["shape"] == (rows, 2, 2, tasks.LENGTH, 1, 8)  # of two heads of keys and values
        assert found["largest"] < math.prod(found["shape"])  # all of it is not sent


@pytest.mark.parametrize("divided", [None, "zero"])
def test_ranks_may_have_prompts_of_their_own(divided, ranks, plain):
    """With a stop that comes sooner on one of them."""
    options = {"sampled": "greedy", "own": True, "stops": True}
    [alone], results = together(
        plain.begin(tasks.generate, divided="plain", **options),
        ranks(2).begin(tasks.generate, divided=divided, **options),
    )
    assert len({sum(map(bool, text)) for [text] in alone["texts"]}) > 1
    for found in results:
        assert found["size"] == 2
        assert found["texts"] == alone["texts"][found["rank"] :: 2]


def test_loops_without_ranks_values_are_kerass(ranks):
    assert ranks(2).run(tasks.loops) == [[[1.0, 16.0], [2.0, 2.0, 2.0]]] * 2


@pytest.mark.parametrize("divided", [None, "zero", "layouts"])
def test_files_of_adapters_are_one_processs(divided, tmp_path, ranks, plain, exactness):
    [alone], results = together(
        plain.begin(tasks.adapters, divided="plain", folder=tmp_path / "alone"),
        ranks(2).begin(tasks.adapters, divided=divided, folder=tmp_path / "ranks"),
    )
    expected, found = contents(tmp_path / "alone"), contents(tmp_path / "ranks")
    assert expected.keys() == found.keys()
    for name in "lora_kernel_a", "q_proj.weight":
        assert any(name in each for each in found)
    for name, value in expected.items():
        exactness(distance(found[name], value), TOLERANCE)
    for each in results:
        assert each["size"] == 2
        for trained, loaded, one in zip(each["trained"], each["loaded"], alone["trained"], strict=True):
            np.testing.assert_array_equal(trained, loaded)
            exactness(distance(trained, one), TOLERANCE)
    assert sorted(path.name for path in (tmp_path / "ranks").rglob("*")) == sorted(
        path.name for path in (tmp_path / "alone").rglob("*")
    )


def distance(found: np.ndarray, expected: np.ndarray) -> float:
    """The largest, relative to the largest element."""
    largest = np.max(np.abs(expected), initial=0)
    return np.max(np.abs(found - expected), initial=0) / (largest or 1)


@pytest.mark.long
def test_rank_0_may_save_adapters_that_are_whole_on_each_rank(tmp_path, ranks):
    found = ranks(2).run(tasks.adapters, divided=None, folder=tmp_path, rank_0_only=True)
    assert [each["size"] for each in found] == [2, 2]
    saved = [value for name, value in contents(tmp_path).items() if "lora_kernel" in name]
    assert len(saved) == len(found[0]["trained"])
    for value in saved:
        assert any(np.array_equal(value, trained) for trained in found[0]["trained"])


def contents(folder) -> dict[str, np.ndarray]:
    """The arrays of all HDF5 files, and of Hugging Face's."""
    found = {}
    for path in folder.rglob("*.safetensors"):
        found |= {f"{path.name} {name}": value for name, value in load_file(path).items()}
    for path in sorted(folder.rglob("*.h5")):
        with h5py.File(path) as file:
            file.visititems(
                lambda name, each, path=path: (
                    found.update({f"{path.name} {name}": np.asarray(each)}) if isinstance(each, h5py.Dataset) else None
                )
            )
    return found
