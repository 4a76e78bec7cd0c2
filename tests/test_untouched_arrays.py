"""Nothing that `fit` and its kin do writes into the arrays that they are given, wherever these lie."""

import pytest

from tests import untouched_array_tasks as tasks


def require_untouched(size: int, results: list[dict]) -> None:
    assert results == [{"size": size, "guilty": []}] * size


@pytest.mark.parametrize(
    "kinds",
    [
        ("py_dataset", "ragged"),
        pytest.param(
            ("arrays", "generator", "dataset", "dataset_of_a_generator", "data_loader"), marks=pytest.mark.long
        ),
    ],
)
def test_arrays_keep_their_bytes(kinds, ranks, tmp_path):
    about = {"storage": "memory", "num_rows": 28, "folder": str(tmp_path), "kinds": kinds}
    require_untouched(2, ranks(2).run(tasks.written_to, **about))


@pytest.mark.parametrize("storage", ["read-only", "r", "r+"])
def test_arrays_that_are_read_only_or_mapped_from_a_file_keep_their_bytes(storage, ranks, tmp_path):
    about = {"storage": storage, "num_rows": 16, "folder": str(tmp_path), "kinds": ("py_dataset", "arrays")}
    require_untouched(2, ranks(2).run(tasks.written_to, **about))


@pytest.mark.parametrize(("size", "remainder"), [(2, "wrap"), (2, "drop"), (3, "drop")])
def test_arrays_keep_their_bytes_under_every_policy_for_odd_rows(size, remainder, ranks, tmp_path):
    about = {"storage": "memory", "num_rows": 13, "folder": str(tmp_path), "kinds": ("generator",)}
    require_untouched(size, ranks(size).run(tasks.written_to, remainder=remainder, **about))


@pytest.mark.parametrize("mesh", [(2, 1), pytest.param((2, 2), marks=pytest.mark.long)])
def test_arrays_keep_their_bytes_on_a_mesh(mesh, ranks, tmp_path):
    size = mesh[0] * mesh[1]
    about = {"storage": "memory", "num_rows": 16, "folder": str(tmp_path), "kinds": ("py_dataset",)}
    require_untouched(size, ranks(size).run(tasks.written_to, mesh=mesh, **about))


def test_arrays_that_the_user_shards_keep_their_bytes(ranks, tmp_path):
    about = {"storage": "memory", "num_rows": 44, "folder": str(tmp_path)}
    require_untouched(2, ranks(2).run(tasks.shared_out, **about))
