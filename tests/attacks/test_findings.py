"""Where each finding about real data is attacked: a test of every row exists."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

LOOPS = "tests/independence/test_patterns_in_loops.py::test_a_loop_that_mixes_records_is_refused"
FINDINGS = {
    "padding to the longest record": LOOPS,
    "mixup and standardisation in collate_fn": LOOPS,
    "centring, std, max and mixup outside the model": LOOPS,
    "a DataLoader with any of these": (
        "tests/independence/test_patterns_directly.py::test_a_loop_that_mixes_records_is_refused"
    ),
    "the Trainer with any of these": (
        "tests/independence/test_patterns_in_trainers.py::test_a_trainer_that_mixes_records_is_refused"
    ),
    "in-batch negatives in any spelling": LOOPS,
    "in-batch negatives through the second factor, late": (
        "test_second_factor.py::test_a_loop_is_asked_whenever_the_graph_leaves_it_open"
    ),
    "micro-batches of one record use up the probes": (
        "test_switched_off_checks.py::test_micro_batches_of_one_record_use_up_no_probes"
    ),
    "retain_grad, register_hook and autograd.grad in the forward": (
        "test_switched_off_checks.py::test_nothing_in_the_forward_switches_the_check_off"
    ),
    "a hook that mixes": "test_switched_off_checks.py::test_a_hook_that_mixes_gradients_is_seen",
    "an offset of 1e6": "test_switched_off_checks.py::test_an_offset_of_the_loss_hides_no_mixing",
    "the padded length is data": "test_padded_lengths.py::test_a_stated_length_hides_the_length_of_a_record",
    "fold and unfold without batch dimension": (
        "test_unbatched_patches.py::test_windows_are_never_taken_for_records"
    ),
    "channel_shuffle": "test_shuffled_channels.py::test_shuffled_records_are_never_taken_for_each_other",
    "no batch axis, but room for one": (
        "test_second_factor.py::test_keys_of_the_batch_are_refused_without_a_check"
    ),
    "one odd label silences everybody": (
        "test_silenced_labels.py::test_guessing_whether_a_record_is_odd_is_chance_at_epsilon_one"
    ),
    "an error quotes labels": "test_odd_labels.py::test_an_error_shows_no_record",
    "a list as label, a huge number": "test_odd_labels.py::test_a_value_beyond_all_bounds_stops_nothing",
    "N depends on private content": (
        "test_counted_rows.py::test_neither_n_nor_the_record_of_the_split_depends_on_a_row"
    ),
    "a record scaled by e^80 is refused": (
        "test_extreme_scales.py::test_refusals_do_not_tell_an_extreme_record"
    ),
    "a record that overflows is refused": "test_refused_by_values.py::test_no_record_makes_a_module_refused",
    "an error states the size of a draw": (
        "test_counted_errors.py::test_an_error_is_the_same_for_every_size_of_the_draw"
    ),
    "a ledger without plan, three runs": (
        "test_books_of_several.py::test_no_run_says_less_than_its_ledger_has_spent"
    ),
    "ranks with the same records in another order": (
        "test_books_of_several.py::test_the_same_records_in_another_order_do_not_pass"
    ),
    "verify misses rewritten files": "test_rewritten_files.py::test_a_rewritten_file_is_found_and_named",
    "a kill between config and split": (
        "tests/lab/test_broken_off.py::test_a_start_that_is_broken_off_can_be_made_again"
    ),
    "finished with the first weights": (
        "tests/lab/test_broken_off.py::test_a_plan_that_is_spent_without_a_checkpoint_does_not_pass_for_a_model"
    ),
    "lost steps are not said": "tests/lab/test_broken_off.py::test_what_was_lost_is_said_and_kept",
    "labels of 2⁴⁰": (
        "tests/lab/test_odd_files.py::test_labels_that_are_identifiers_are_refused_without_being_quoted"
    ),
    "tokens outside the vocabulary": (
        "tests/lab/test_odd_files.py::test_tokens_outside_the_vocabulary_are_refused_before_anything_is_released"
    ),
    "a header of 10¹² rows": "tests/lab/test_odd_files.py::test_a_header_of_a_trillion_rows_is_refused",
    "deep nesting": "tests/lab/test_odd_files.py::test_deep_nesting_is_refused",
    "odd blocks of a federated client": (
        "test_odd_updates.py::test_an_odd_update_is_refused_and_the_round_goes_on"
    ),
    "a zeroed tail counts once": (
        "test_zeroed_ledger.py::test_zeroed_lines_count_at_least_as_often_as_they_were"
    ),
    "bit-flipped checkpoints": "tests/lab/test_broken_off.py::test_a_checkpoint_with_one_wrong_bit_is_refused",
    "checkpoints of two copies": "test_copied_runs.py::test_the_checkpoint_of_one_copy_does_not_fit_the_other",
    "a fork releases a batch twice": "test_forked_copies.py::test_a_child_does_not_release_its_parents_batch",
    "every lock error reads alike": (
        "test_ledger_lock.py::test_a_file_system_without_locks_is_refused_for_that_reason"
    ),
    "Flower's mask function": (
        "tests/integrations/test_flower_secure.py::test_a_flower_whose_masks_cannot_be_replaced_is_refused"
    ),
    "complex parameters": "test_switched_off_checks.py::test_complex_parameters_are_refused",
    "BatchNorm1d on tables": "tests/capture/test_fix_learns.py::test_a_fixed_model_of_tables_learns",
    "sequences of length 0": "tests/capture/test_empty_sequences.py::test_sequences_of_length_zero_add_nothing",
    "silently dropped NaN rows": (
        "test_spread_of_bad_records.py::test_explain_says_that_such_records_add_zero"
    ),
    "a record that is rounding alone is refused": (
        "test_refused_by_values.py::test_no_record_makes_a_loop_refused"
    ),
    "a teacher keeps what it saw": "test_state_in_model.py::test_what_a_teacher_keeps_is_refused",
    "the published seed tells masks": (
        "test_published_seeds.py::test_the_published_seed_does_not_tell_masks_and_views"
    ),
    "generators that are used late": (
        "test_masks_beside_bad_records.py::test_others_meet_the_same_numbers_of_a_generator_that_is_used_late"
    ),
    "a day of the year 30,000": "tests/tables/test_table_file.py::test_no_value_stops_the_reader_of_parquet",
    "a NaN record spoils others": (
        "test_spread_of_bad_records.py::test_a_release_is_that_without_the_bad_record"
    ),
}
"""Finding → the test that attacks it; files without a folder are in this one."""


@pytest.mark.parametrize("finding", FINDINGS)
def test_every_finding_has_its_attack(finding: str) -> None:
    file, name = FINDINGS[finding].split("::")
    path = ROOT / (file if "/" in file else f"tests/attacks/{file}")
    assert f"def {name}(" in path.read_text()
