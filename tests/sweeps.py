"""Which cases of long sweeps `make test` and `make test-long` run: every n-th of those that are not slow anyway.

A number should share no divisor with that of ranks or layouts, which come in turns.
"""

# What `make test` leaves is run by `make test-long`.

EVERY = {
    "test_callback_memory.py::test_on_as_many_ranks_it_decides_the_same_bit_by_bit": 3,
    "test_catalogue.py::test_a_strategy_ends_where_one_process_ends": 9,
    "test_collectives.py::test_a_reducer_sums_or_averages_every_kind_of_gradient": 5,
    "test_communicators.py::test_a_breach_is_found_on_every_rank": 3,
    "test_communicators.py::test_the_contract_is_kept": 5,
    "test_communicators.py::test_the_contract_is_kept_in_groups_of_ranks": 3,
    "test_exactness.py::test_ranks_end_where_one_process_ends": 7,
    "test_following.py::test_what_follows_is_divided_and_trains_as_one_process": 2,
    "test_gpu_bits.py::test_bits_of_ranks_do_not_part_them": 5,
    "test_inputs.py::test_all_ranks_are_given_the_same": 3,
    "test_inputs.py::test_policies_for_the_odd_rows_of_a_global_batch": 3,
    "test_inputs.py::test_shards_of_the_user_by_policy": 5,
    "test_inputs.py::test_shards_of_the_user_exactly": 3,
    "test_known_losses.py::test_a_batch_is_looked_at_where_losses_are_not_known": 5,
    "test_known_losses.py::test_where_variables_are_divided_it_is_said_that_nobody_looks": 3,
    "test_metrics.py::test_other_metrics_are_named_once": 5,
    "test_metrics.py::test_sums_and_what_is_said_are_one_process_s": 3,
    "test_mixing.py::test_rows_that_are_paired_are_told_of_once": 3,
    "test_mixing.py::test_what_only_looks_like_it_is_not": 3,
    "test_model_parallel.py::test_a_mesh_ends_where_one_process_ends": 5,
    "test_own_logs.py::test_numbers_of_several_kinds_are_one_processs": 5,
    "test_own_logs.py::test_what_steps_do_besides_is_one_processs": 3,
    "test_py_datasets.py::test_the_order_is_that_of_one_process": 3,
    "test_random.py::test_ranks_end_where_one_process_ends_with_its_random_numbers": 7,
    "test_recompute.py::test_every_mode_of_kerass_scope_trains_as_without": 3,
    "test_recompute.py::test_layers_that_are_recomputed_train_as_one_process": 3,
    "test_resume.py::test_on_as_many_ranks_it_ends_bit_by_bit_the_same": 7,
    "test_search.py::test_what_is_planned_to_be_sent_is_what_a_step_sends": 5,
    "test_search_memory.py::test_layers_are_computed_again_where_their_tensors_do_not_fit": 3,
    "test_sharded_checkpoint.py::test_on_the_same_mesh_it_ends_bit_by_bit_the_same": 4,
    "test_small_batches.py::test_training_ends_where_one_process_ends": 5,
    "test_sparse_inputs.py::test_an_unbuilt_model_trains_on_sparse_rows": 3,
    "test_steps.py::test_losses_that_are_taken_for_what_they_are_not_are_told_of_once": 5,
    "test_steps.py::test_steps_of_ones_own_end_where_one_process_ends": 7,
    "test_zero.py::test_all_stages_end_where_one_process_ends_and_two_where_data_parallel_does": 3,
    "test_zero.py::test_what_is_there_is_divided_or_made_whole": 5,
}

# Of what `make test` leaves, `make test-long` runs every n-th case, and `make test-all` the others. These sweeps took
# longest as wholes. Continuous integration is to end well before it is cut off.
LONG_EVERY = {
    "test_catalogue.py::test_a_strategy_ends_where_one_process_ends": 5,
    "test_communicators.py::test_a_breach_is_found_on_every_rank": 3,
    "test_exactness.py::test_ranks_end_where_one_process_ends": 3,
    "test_model_parallel.py::test_a_mesh_ends_where_one_process_ends": 3,
    "test_own_logs.py::test_numbers_of_several_kinds_are_one_processs": 3,
    "test_random.py::test_ranks_end_where_one_process_ends_with_its_random_numbers": 3,
    "test_recompute.py::test_layers_that_are_recomputed_train_as_one_process": 3,
    "test_search.py::test_what_is_planned_to_be_sent_is_what_a_step_sends": 3,
    "test_small_batches.py::test_training_ends_where_one_process_ends": 3,
    "test_steps.py::test_steps_of_ones_own_end_where_one_process_ends": 3,
}
