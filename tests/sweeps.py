"""Which cases of long sweeps `make test` runs: every n-th of those that are not slow anyway.

A number should share no divisor with that of ranks or layouts, which come in turns. `make test-long` runs the others.
"""

EVERY = {
    "test_catalogue.py::test_a_strategy_ends_where_one_process_ends": 5,
    "test_exactness.py::test_ranks_end_where_one_process_ends": 5,
    "test_following.py::test_what_follows_is_divided_and_trains_as_one_process": 2,
    "test_inputs.py::test_all_ranks_are_given_the_same": 3,
    "test_model_parallel.py::test_a_mesh_ends_where_one_process_ends": 4,
    "test_model_parallel.py::test_every_way_of_training_ends_where_one_process_ends": 3,
    "test_py_datasets.py::test_the_order_is_that_of_one_process": 3,
    "test_random.py::test_ranks_end_where_one_process_ends_with_its_random_numbers": 7,
    "test_random_trainings.py::test_what_drawing_has_found": 3,
    "test_recompute.py::test_every_mode_of_kerass_scope_trains_as_without": 3,
    "test_recompute.py::test_layers_that_are_recomputed_train_as_one_process": 3,
    "test_resume.py::test_on_as_many_ranks_it_ends_bit_by_bit_the_same": 5,
    "test_sharded_checkpoint.py::test_on_the_same_mesh_it_ends_bit_by_bit_the_same": 3,
    "test_small_batches.py::test_training_ends_where_one_process_ends": 3,
    "test_sparse_inputs.py::test_an_unbuilt_model_trains_on_sparse_rows": 3,
    "test_steps.py::test_steps_of_ones_own_end_where_one_process_ends": 5,
    "test_stock_callbacks.py::test_backup_and_restore": 3,
}
