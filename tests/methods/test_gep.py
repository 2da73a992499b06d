"""GEP and B-GEP on a model: what an independent numpy implementation gives, what is paid, what is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import quietgrad as qg
from quietgrad._gradients.blocks import Blocks
from quietgrad._gradients.stages import Released
from quietgrad._mechanism.clipping import MARGIN
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._privatizer.research import Observer
from quietgrad._representations.masks.mask import RandomMask
from quietgrad.accounting import events
from quietgrad.methods.gep import energy_split
from quietgrad.public_losses import labelled_losses, random_label_losses
from tests.cases.world import SIDE, privatizer, public_losses, records, run, small_net

ROWS = [0, 4, 5, 11, 30]
HUGE = 1e6
P = sum(p.numel() for p in small_net().parameters())


def numpy_gradients(model: nn.Module, losses: Tensor) -> np.ndarray:
    """One backward per loss: the slow, obvious per-sample gradients `[n, p]` in float64."""
    parameters = list(model.parameters())
    rows = [torch.autograd.grad(loss, parameters, retain_graph=True) for loss in losses]
    return np.stack([np.concatenate([part.double().numpy().ravel() for part in row]) for row in rows])


def private_rows(model: nn.Module) -> np.ndarray:
    x, y = records(torch.float64)[ROWS]
    return numpy_gradients(model, F.cross_entropy(model(x), y, reduction="none"))


def labelled(model: nn.Module) -> Tensor:
    """Public losses without randomness, so that numpy sees the same ones."""
    rng = torch.Generator().manual_seed(3)
    x = torch.randn(24, 1, SIDE, SIDE, generator=rng, dtype=torch.float64)
    return F.cross_entropy(model(x), torch.arange(24) % 3, reduction="none")


def released(mechanism: Mechanism, micro: int = 64) -> np.ndarray:
    model: nn.Module = small_net(torch.float64)
    with privatizer(mechanism.with_noise(0.0), [ROWS], model=model) as (private, batches, model):
        update = run(private, batches, model, micro=micro)[0]
    return np.concatenate([block.numpy().ravel() for block in update.values()])


def relative(got: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(got - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize("groups", [1, 3, "modules"])
@pytest.mark.parametrize("micro", [2, 64])
def test_without_noise_and_with_large_clips_gep_is_the_mean_gradient(groups: int | str, micro: int) -> None:
    mechanism = qg.methods.gep(labelled, rank=8, clip=HUGE, residual_clip=HUGE, groups=groups)
    expected = private_rows(small_net(torch.float64)).sum(0) / 10
    assert relative(released(mechanism, micro), expected) < 1e-4


def module_slices(model: nn.Module) -> Iterator[slice]:
    """The columns of each top-level module."""
    start = 0
    for child in model.children():
        stop = start + sum(p.numel() for p in child.parameters())
        yield slice(start, stop)
        start = stop


@pytest.mark.parametrize("micro", [2, 64])
def test_biased_gep_is_the_projection_onto_all_public_gradients(micro: int) -> None:
    """With as many vectors as public gradients the subspace is their span, whatever the random start."""
    model: nn.Module = small_net(torch.float64)
    anchors = numpy_gradients(model, labelled(model))
    basis = np.linalg.svd(anchors, full_matrices=False)[2]
    expected = private_rows(model).sum(0) / 10 @ basis.T @ basis
    mechanism = qg.methods.biased_gep(labelled, rank=24, clip=HUGE)
    assert relative(released(mechanism, micro), expected) < 1e-4


def test_biased_gep_with_groups_projects_each_group() -> None:
    model: nn.Module = small_net(torch.float64)
    anchors, mean = numpy_gradients(model, labelled(model)), private_rows(model).sum(0) / 10
    expected = np.zeros_like(mean)
    # Many iterations find the principal directions, which numpy finds directly.
    mechanism = qg.methods.biased_gep(labelled, rank=8, clip=HUGE, groups="modules", power_iterations=200)
    with privatizer(mechanism.with_noise(0.0), [ROWS], model=model) as (private, _, _):
        ranks = [size[0] for size in private.begin_step().codec(0).space.values()]
    for columns, rank in zip(module_slices(small_net()), ranks, strict=True):
        basis = np.linalg.svd(anchors[:, columns], full_matrices=False)[2][:rank]
        expected[columns] = mean[columns] @ basis.T @ basis
    assert relative(released(mechanism), expected) < 1e-4


@pytest.mark.parametrize("joint", [False, True])
def test_clipping_is_numpys(joint: bool) -> None:
    model: nn.Module = small_net(torch.float64)
    anchors, rows = numpy_gradients(model, labelled(model)), private_rows(model)
    basis = np.linalg.svd(anchors, full_matrices=False)[2]
    inside, outside = rows @ basis.T @ basis, rows - rows @ basis.T @ basis
    first, second, share = 0.6, 0.3, 0.3
    mechanism = qg.methods.gep(labelled, rank=24, clip=first, residual_clip=second, split=share, joint=joint)
    if joint:
        length = np.linalg.norm(inside, axis=1) ** 2 * share / first**2
        length += np.linalg.norm(outside, axis=1) ** 2 * (1 - share) / second**2
        expected = ((inside + outside) * np.minimum(1, length**-0.5)[:, None]).sum(0) / 10
    else:
        expected = (
            sum(
                (part * np.minimum(1, bound / np.linalg.norm(part, axis=1))[:, None]).sum(0)
                for part, bound in ((inside, first), (outside, second))
            )
            / 10
        )
    # What is left is the margin of the residual's bound.
    assert relative(released(mechanism), (1 - MARGIN) * expected) < 2.5e-3


@pytest.mark.parametrize("joint", [False, True])
def test_inside_a_mask_it_is_the_masked_mean_gradient(joint: bool) -> None:
    mask = RandomMask(0.6)
    inside = qg.methods.gep(labelled, rank=8, clip=HUGE, residual_clip=HUGE, joint=joint) @ mask
    got, expected = released(inside), private_rows(small_net(torch.float64)).sum(0) / 10
    assert 0.3 * P < np.count_nonzero(got) < 0.5 * P
    assert relative(got[got != 0], expected[got != 0]) < 1e-4


def test_a_step_is_one_gaussian_at_the_effective_multiplier() -> None:
    for split in ("paper", 0.2):
        mechanism = qg.methods.gep(
            public_losses, rank=6, clip=5.0, residual_clip=2.0, split=split
        ).with_noise(1.7)
        assert mechanism.event(0) == events.GaussianEvent(noise_multiplier=1.7)
        precision = sum((r.clip.sensitivity(0) / mechanism.std(r, 0)) ** 2 for r in mechanism.releases)
        assert precision == pytest.approx(1.7**-2)
    paper = qg.methods.gep(public_losses, rank=6).with_noise(1.0)
    assert [paper.std(r, 0) / r.clip.sensitivity(0) for r in paper.releases] == pytest.approx(
        [math.sqrt(2)] * 2
    )


class Energies(Observer):
    """The energy of everything that empty batches release: pure noise."""

    def __init__(self) -> None:
        self.total = 0.0

    def step(self, step: int, released: list[Released], update: Blocks) -> None:
        self.total += sum(
            float(block.double().square().sum()) for part in released for block in part.blocks.values()
        )


def test_the_energy_split_has_a_third_less_noise_than_the_papers() -> None:
    """k = 1000, p = 268k, S = (5, 2): 35% less, by the formula and by what is released at that ratio of k to p."""

    def formula(share: float) -> float:
        return 1000 * 25 / share + 268_000 * 4 / (1 - share)

    assert formula(energy_split(1000, 268_000, 5.0, 2.0)) / formula(0.5) == pytest.approx(0.65, abs=0.005)
    # The same a = kS₁² and b = pS₂² on the small model: S₂ fixed, S₁ such that the ratio is the same.
    rank, residual_clip = 6, 2.0
    clip = math.sqrt(25_000 / (4 * 268_000) * P / rank) * residual_clip
    measured = {}
    for split in ("paper", "energy"):
        mechanism = qg.methods.gep(
            public_losses, rank=rank, clip=clip, residual_clip=residual_clip, split=split, parameters=P
        )
        observer = Energies()
        with privatizer(mechanism.with_noise(1.0), [[]] * 60, research=True) as (private, batches, model):
            private.watch(observer)
            run(private, batches, model)
        measured[split] = observer.total
    assert measured["energy"] / measured["paper"] == pytest.approx(0.65, abs=0.03)


def test_the_default_clips_add_less_noise_than_dp_sgd_at_the_same_clip() -> None:
    gep, plain = qg.methods.gep(public_losses, rank=6).with_noise(3.0), qg.methods.dp_sgd().with_noise(3.0)
    embedding, residual = (gep.std(release, 0) for release in gep.releases)
    assert gep.releases[0].clip.sensitivity(0) == plain.releases[0].clip.sensitivity(0)
    assert residual < 0.75 * plain.std(plain.releases[0], 0)
    assert 6 * embedding**2 + P * residual**2 < P * plain.std(plain.releases[0], 0) ** 2


def test_labels_are_redrawn_every_step_and_the_same_within_one() -> None:
    seen: list[Tensor] = []
    inputs = torch.randn(10, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))

    class Spy(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(len(x), 3, requires_grad=True)

    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses = list(random_label_losses(inputs, 3, chunk=4)(Spy()))
        assert [len(chunk) for chunk in losses] == [4, 4, 2]
        torch.manual_seed(seed)
        seen.append(torch.randint(3, (10,)))
    assert torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_gep_with_random_labels_changes_its_basis_every_step() -> None:
    inputs = torch.randn(24, 1, SIDE, SIDE, generator=torch.Generator().manual_seed(0))
    mechanism = qg.methods.gep(random_label_losses(inputs, 3, chunk=10), rank=6).with_noise(1.0)
    bases = []
    with privatizer(mechanism, [[0], [0]]) as (private, batches, model):
        for _ in range(2):
            batch = next(iter(batches))
            codec = private.begin_step().codec(0)
            bases.append(codec.basis.groups["part0"].rows)  # type: ignore[attr-defined]
            for x, y in batch.split(8):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))
            private.release()
    assert not torch.allclose(bases[0], bases[1])


def step_once(mechanism: Mechanism) -> None:
    with privatizer(mechanism.with_noise(1.0), [ROWS]) as (private, batches, model):
        run(private, batches, model)


def test_a_closure_over_the_training_loops_batch_is_refused() -> None:
    """The bug that happens: `x` inside public_losses is the loop's x."""
    current: dict[str, Tensor] = {}

    def leaking(model: nn.Module) -> Tensor:
        return F.cross_entropy(
            model(current["x"]), torch.zeros(len(current["x"]), dtype=torch.long), reduction="none"
        )

    mechanism = qg.methods.gep(leaking, rank=2).with_noise(1.0)
    with privatizer(mechanism, [ROWS]) as (private, batches, model):
        for x, y in next(iter(batches)).split(8):
            current["x"] = x
            with pytest.raises(ValueError, match="fed the private batch to the model"):
                private.backward(F.cross_entropy(model(x), y, reduction="none"))


def test_public_losses_that_are_not_the_models_are_refused() -> None:
    x, y = records()[ROWS]
    elsewhere = F.cross_entropy(small_net()(x), y, reduction="none")
    with pytest.raises(ValueError, match="do not depend on the model's parameters"):
        step_once(qg.methods.gep(lambda _: elsewhere, rank=2))


def test_public_losses_made_of_a_private_forward_are_refused() -> None:
    """Those of the step before: a step asks for its public losses before its own forward."""
    current: dict[str, Tensor] = {}

    def losses(model: nn.Module) -> Tensor:
        return 2 * current["losses"] if current else public_losses(model)

    mechanism = qg.methods.gep(losses, rank=2).with_noise(1.0)
    with privatizer(mechanism, [ROWS] * 3) as (private, batches, model):
        draws = iter(batches)
        for x, y in next(draws).split(8):
            private.backward(F.cross_entropy(model(x), y, reduction="none"))
        private.release()
        for x, y in next(draws).split(8):
            with torch.enable_grad():
                current["losses"] = F.cross_entropy(model(x), y, reduction="none")
            private.backward(current["losses"])
        private.release()
        with pytest.raises(ValueError, match="used outside the forward of every module"):
            private.begin_step()


def test_public_gradients_that_vanish_leave_the_residual() -> None:
    """Losses that are constant in the weights at this point: GEP is then DP-SGD at the residual's clip."""
    mechanism = qg.methods.gep(lambda model: 0.0 * labelled(model), rank=4, clip=HUGE, residual_clip=HUGE)
    with pytest.warns(RuntimeWarning, match="rank 0 only"):
        got = released(mechanism)
    assert relative(got, private_rows(small_net(torch.float64)).sum(0) / 10) < 1e-4


def test_public_data_of_another_shape_is_refused() -> None:
    wrong = labelled_losses(torch.zeros(8, 3, 9, 9), torch.zeros(8, dtype=torch.long))
    with pytest.raises(ValueError, match="Public inputs need the shape and type that the model takes"):
        step_once(qg.methods.gep(wrong, rank=2))


def test_rank_above_the_public_gradients_or_the_parameters_is_refused() -> None:
    with pytest.raises(ValueError, match="rank <= 24, the number of public gradients, got 25"):
        step_once(qg.methods.gep(public_losses, rank=25))
    with pytest.raises(ValueError, match=f"rank <= {P}, the number of parameters"):
        step_once(qg.methods.gep(public_losses, rank=P + 1))


def test_groups_that_miss_a_parameter_are_refused() -> None:
    with pytest.raises(ValueError, match=r"'norm.weight' is in no group"):
        step_once(qg.methods.gep(public_losses, rank=4, groups={"a": ["conv", "hidden", "head"]}))


@pytest.mark.parametrize("split", ["even", 0.0, 1.0, -0.5])
def test_a_split_that_is_none_is_refused(split: object) -> None:
    with pytest.raises(ValueError, match="split"):
        qg.methods.gep(public_losses, rank=4, split=split)  # type: ignore[arg-type]


def test_the_energy_split_asks_for_the_number_of_parameters() -> None:
    with pytest.raises(ValueError, match="needs parameters="):
        qg.methods.gep(public_losses, rank=4, split="energy")


def test_a_mechanism_describes_itself() -> None:
    described = qg.methods.gep(public_losses, rank=4, groups="modules").describe()
    assert described == qg.methods.gep(public_losses, rank=4, groups="modules").describe()
    assert described != qg.methods.gep(public_losses, rank=4, groups=2).describe()
