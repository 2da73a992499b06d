"""Rounds of federated training: clipped, noised, counted, whatever clients send."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients.blocks import flatten
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import SeededSource
from quietgrad.federated import FederatedServer, Task, encode_update, train_locally
from quietgrad.federated.rounds import Update, size_of, unpack
from quietgrad.federated.shared_start import restore_task, shorten_task
from tests.cases.methods import BY_FAMILY, METHODS, MethodCase
from tests.cases.world import losses_of, records, small_net

CLIP = 0.5
PARTS = [TensorDataset(*records()[client * 8 : client * 8 + 8]) for client in range(5)]


def server(
    mechanism: Mechanism, *, rate: float = 1.0, rounds: int = 3, file: Path | None = None
) -> FederatedServer:
    return FederatedServer(
        small_net(), mechanism, clients=5, rate=rate, rounds=rounds, ledger=file, noise_source=SeededSource(1),
        public_seed=3,
    )  # fmt: skip


def update_of(running: FederatedServer, client: int) -> Update:
    """What a client sends; the task goes over the wire."""
    task = Task.unpacked(running.task().packed())
    return encode_update(
        small_net(),
        running.mechanism,
        task,
        lambda model: train_locally(model, PARTS[client], losses_of, lr=1.0),
    )


def moved(a: FederatedServer, b: FederatedServer) -> float:
    flat = [flatten(dict(s.model.named_parameters())).double() for s in (a, b)]
    return float((flat[0] - flat[1]).norm())


@pytest.mark.parametrize("case", BY_FAMILY)
def test_every_method_trains_and_one_client_moves_a_sum_by_at_most_its_sensitivity(case: MethodCase) -> None:
    mechanism = case.build(CLIP).with_noise(2.0)
    one, other = server(mechanism), server(mechanism)
    for turn in range(2):
        for running in (one, other):
            drawn = running.draw()
            for client in drawn:
                if running is one or client != 2 or turn == 0:
                    assert running.receive(client, update_of(running, client))
        if turn == 1:
            for release, a, b in zip(mechanism.releases, one._step.sums, other._step.sums, strict=True):  # type: ignore[union-attr]
                distance = math.sqrt(sum(float((a.blocks[n] - b.blocks[n]).square().sum()) for n in a.blocks))
                assert 0 < distance <= release.clip.sensitivity(1) or case.name == "top_groups_paid"
        one.release()
        other.release()
    assert one.ledger.phases == other.ledger.phases
    assert one.ledger.count == 2


def test_without_noise_a_round_is_federated_averaging() -> None:
    running = server(METHODS[0].build(100.0).with_noise(0.0))
    start = flatten(dict(running.model.named_parameters()))
    updates = [update_of_after_draw(running, client) for client in range(5)]
    running.release()
    mean = torch.stack([flatten(update[0]) for update in updates]).mean(0)
    torch.testing.assert_close(flatten(dict(running.model.named_parameters())), start - mean)


def update_of_after_draw(running: FederatedServer, client: int) -> Update:
    if client == 0:
        running.draw()
    update = update_of(running, client)
    running.receive(client, update)
    return update


def test_freezing_and_low_rank_cut_what_is_sent() -> None:
    sizes = {}
    for case in METHODS:
        if case.name in ("dp_sgd", "random_freeze_per_step", "rgp_random"):
            running = server(case.build(CLIP).with_noise(1.0))
            running.draw()
            sizes[case.name] = size_of(update_of(running, 0))
    assert sizes["dp_sgd"] == 371 * 4
    assert sizes["random_freeze_per_step"] < 0.12 * sizes["dp_sgd"]
    assert sizes["rgp_random"] < sizes["dp_sgd"]


@pytest.mark.parametrize("case", BY_FAMILY)
def test_a_task_is_shorter_and_the_same_for_a_client_with_the_first_weights(case: MethodCase) -> None:
    running = server(case.build(CLIP).with_noise(2.0))
    for turn in range(2):
        running.draw()
        task = running.task()
        message = shorten_task(task, running.start)
        task_again = restore_task(message, {name: p.detach() for name, p in small_net().named_parameters()})
        assert all(torch.equal(task_again.weights[name], weight) for name, weight in task.weights.items())
        assert str(task_again.state) == str(task.state)
        assert (task_again.round, task_again.seed) == (turn, 3)
        assert len(message) < len(task.packed())
        running.release()


def test_freezing_shortens_tasks_for_clients_with_the_first_weights() -> None:
    weights, sizes = torch.nn.Linear(200, 100), {}
    methods = {"dense": qg.methods.dp_sgd(clip=1.0), "frozen": qg.methods.random_freeze(freeze=0.9, clip=1.0)}
    for name, mechanism in methods.items():
        running = FederatedServer(
            copy.deepcopy(weights), mechanism.with_noise(1.0), clients=5, rate=0.1, rounds=3
        )
        running.draw()
        running.release()
        running.draw()
        sizes[name] = len(shorten_task(running.task(), running.start))
    assert sizes["frozen"] < 0.25 * sizes["dense"]


def test_a_client_with_other_first_weights_is_refused_and_whole_tasks_still_work() -> None:
    running = server(METHODS[0].build(CLIP).with_noise(1.0))
    running.draw()
    other = {name: weight + 1 for name, weight in running.start.items()}
    with pytest.raises(ValueError, match="first weights"):
        restore_task(shorten_task(running.task(), running.start), other)
    assert torch.equal(
        restore_task(running.task().packed(), other).weights["head.weight"], running.start["head.weight"]
    )


@pytest.mark.wrong_types
def test_bad_updates_are_clipped_or_refused_and_the_round_goes_on() -> None:
    mechanism = METHODS[0].build(CLIP).with_noise(1.0)
    running, empty = server(mechanism), server(mechanism)
    running.draw()
    good = update_of(running, 0)
    assert running.receive(0, [{n: 1e9 * b for n, b in good[0].items()}])  # too much: clipped
    assert running.receive(1, [{n: b * math.nan for n, b in good[0].items()}])  # NaN: adds nothing
    assert not running.receive(2, [{n: b[..., :1] for n, b in good[0].items()}])
    assert not running.receive(2, [{}])
    assert not running.receive(2, good + good)
    assert not running.receive(2, "nonsense")  # type: ignore[arg-type]
    assert not running.receive(2, [{n: b.long() for n, b in good[0].items()}])
    assert not running.receive(0, good)  # twice
    assert not running.receive(7, good)  # nobody
    assert len(running.refused) == 7
    running.release()
    empty.draw()
    empty.release()
    assert moved(running, empty) * 5 <= CLIP * 1.0001
    assert running.ledger.phases == empty.ledger.phases


def test_a_client_of_another_model_is_refused() -> None:
    running = server(METHODS[0].build(CLIP).with_noise(1.0))
    running.draw()
    with pytest.raises(ValueError, match="another model"):
        encode_update(torch.nn.Linear(2, 2), running.mechanism, running.task(), lambda _: None)
    with pytest.raises(ValueError, match="cannot be read"):
        unpack(b"not a message")


def test_empty_rounds_count_and_the_plan_ends(tmp_path: Path) -> None:
    running = server(METHODS[0].build(CLIP).with_noise(1.0), rate=1e-9, rounds=2, file=tmp_path / "l.jsonl")
    for _ in range(2):
        assert running.draw() == []
        running.release()
    assert running.ledger.count == 2
    with pytest.raises(ValueError, match="planned rounds are over"):
        running.draw()
    running.close()


def test_resume_goes_on_with_a_true_ledger(tmp_path: Path) -> None:
    mechanism, file = METHODS[0].build(CLIP).with_noise(1.0), tmp_path / "l.jsonl"
    first = server(mechanism, file=file)
    first.draw()
    first.release()
    saved = first.state_dict()
    first.draw()  # the round after the checkpoint is made, and made again
    first.release()
    first.close()
    again = server(mechanism, file=file)
    again.load_state_dict(saved)
    assert again.round == 1
    again.draw()
    again.release()
    assert again.ledger.count == 3
    with pytest.raises(ValueError, match="planned rounds"):
        again.draw()
    again.close()
    with pytest.raises(ValueError, match="clients"):
        FederatedServer(small_net(), mechanism, clients=6, rate=1.0, rounds=3, ledger=file)


def test_a_checkpoint_of_another_mechanism_or_of_a_longer_ledger_is_refused() -> None:
    mechanism = METHODS[0].build(CLIP).with_noise(1.0)
    first = server(mechanism)
    first.draw()
    first.release()
    saved = first.state_dict()
    with pytest.raises(ValueError, match="another mechanism"):
        server(METHODS[0].build(2 * CLIP).with_noise(1.0)).load_state_dict(saved)
    with pytest.raises(ValueError, match="last lines are missing"):
        server(mechanism).load_state_dict(saved)


@pytest.mark.parametrize(("old", "new"), [("shortened", "shorten_task"), ("restored", "restore_task")])
def test_names_of_0_2_work_and_warn(old: str, new: str) -> None:
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(qg.federated, old) is getattr(qg.federated, new)
