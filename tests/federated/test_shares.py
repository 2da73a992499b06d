"""Noise in shares: what is accounted is there with the least number of clients, and no client moves a sum too far."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from jaxtyping import Int32, Int64
from scipy import stats
from torch import Tensor
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad._gradients.blocks import flatten
from quietgrad._mechanism.clipping import MARGIN
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.gaussian import Gaussian
from quietgrad._noise.sources import EntropySource, HardenedSource, NoiseSource, SeededSource
from quietgrad.accounting.ledger import Ledger
from quietgrad.federated import FederatedServer, Shares, Task, noised_update, train_locally
from quietgrad.federated.shares import MODULUS, share_of_noise
from tests.cases.methods import BY_FAMILY, METHODS, MethodCase
from tests.cases.world import losses_of, records, small_net

SHARES = Shares(clients=6, least=4)
MECHANISM = qg.methods.dp_sgd(clip=0.5).with_noise(2.0)
PARTS = [TensorDataset(*records()[client * 6 : client * 6 + 6]) for client in range(6)]
SHARED = [param for param in BY_FAMILY if param.id != "gip"]
"""All but the one whose noise is no Gaussian."""


class Silent(SeededSource):
    """No noise at all, to see what is below it."""

    def fill(self, out: Int32[Tensor, " count"]) -> None:
        out.zero_()


def server(
    mechanism: Mechanism = MECHANISM, *, shares: Shares = SHARES, file: Path | None = None
) -> FederatedServer:
    return FederatedServer(
        small_net(), mechanism, clients=shares.clients, rate=1.0, rounds=3, ledger=file, public_seed=3, shares=shares
    )  # fmt: skip


def sent(
    running: FederatedServer, client: int, source: NoiseSource | None = None, lr: float = 1.0
) -> Int64[Tensor, " p"]:
    """What a client puts into the sum; the task goes over the wire."""
    task = Task.unpacked(running.task().packed())
    assert running.shares is not None
    return noised_update(
        small_net(),
        running.mechanism,
        task,
        lambda model: train_locally(model, PARTS[client], losses_of, lr=lr),
        running.shares,
        noise_source=source or SeededSource(client),
    )


def vector(running: FederatedServer) -> Tensor:
    return flatten(dict(running.model.named_parameters())).double()


def test_a_round_without_noise_is_federated_averaging_of_clipped_updates() -> None:
    secure = server(qg.methods.dp_sgd(clip=1e3).with_noise(1e-3))
    start, _ = vector(secure), secure.draw()
    secure.release_sum(sum(sent(secure, client, Silent(0)) for client in range(6)), 6)  # type: ignore[arg-type]
    trained = []
    for client in range(6):
        model = small_net()
        train_locally(model, PARTS[client], losses_of, lr=1.0)
        trained.append(flatten(dict(model.named_parameters())).double())
    torch.testing.assert_close(vector(secure), torch.stack(trained).mean(0), atol=2e-4, rtol=1e-4)
    assert not torch.equal(vector(secure), start)


@pytest.mark.parametrize("case", SHARED)
def test_one_client_moves_a_sum_by_at_most_its_sensitivity(case: MethodCase) -> None:
    """Whatever it sends: rounding included, in every method whose noise can be shared."""
    mechanism = case.build(0.5).with_noise(2.0)
    running = server(mechanism)
    running.draw()
    for lr in (1e-3, 1.0, 1e4):
        alone = sent(running, 0, Silent(0), lr=lr)
        released = SHARES.open_sum(mechanism, running._spaces(), alone, 0)
        for part in released:
            assert float(flatten(part.blocks).double().norm()) <= part.sensitivity
        assert sum(part.precision for part in released) == pytest.approx(0.25, rel=1e-9)


def test_the_least_number_of_shares_is_the_noise_that_is_accounted() -> None:
    """And of more clients there is more: √(n/t). A share of half the size fails by a hundred standard errors."""
    wide = qg.methods.dp_sgd(clip=1.0).with_noise(0.7)
    size = 200_000
    space = {"w": torch.Size([size])}
    zero = [{"w": torch.zeros(size)}]
    for clients in (4, 6):
        total = sum(SHARES.add_noise(wide, zero, 0, SeededSource(10 * clients + n)) for n in range(clients))
        (released,) = SHARES.open_sum(wide, [space], total, 0)  # type: ignore[arg-type]
        noise = released.blocks["w"].double() / (released.std * math.sqrt(clients / 4))
        assert released.std / released.sensitivity == pytest.approx(0.7, rel=1e-9)
        assert float(noise.std()) == pytest.approx(1.0, abs=6 / math.sqrt(2 * size))
        assert abs(float(noise.mean())) < 6 / math.sqrt(size)
        assert stats.kstest(noise.numpy(), "norm").pvalue > 1e-6


@pytest.mark.parametrize("source", [EntropySource(), HardenedSource()], ids=["default", "hardened"])
@pytest.mark.parametrize("log_std", [8, 20])
def test_a_share_has_the_std_it_says(source: NoiseSource, log_std: int) -> None:
    count = 20_000
    drawn = share_of_noise(count, log_std, source).double() / 2**log_std
    assert float(drawn.std()) == pytest.approx(1.0, abs=6 / math.sqrt(2 * count) + 2.0 ** -(2 * log_std))
    assert abs(float(drawn.mean())) < 6 / math.sqrt(count)


def test_noise_is_never_the_same_twice() -> None:
    running = server()
    running.draw()
    one, other = (sent(running, 0, EntropySource(), lr=0.0) for _ in range(2))
    assert (one == other).float().mean() < 0.01


def test_what_is_sent_has_31_bits_and_a_sum_that_wraps_is_the_same_modulo_them() -> None:
    running = server()
    running.draw()
    parts = [sent(running, client) for client in range(6)]
    assert all(int(part.min()) >= 0 and int(part.max()) < MODULUS for part in parts)
    total = torch.stack(parts).sum(0)
    one = SHARES.open_sum(MECHANISM, running._spaces(), total, 0)[0].blocks
    other = SHARES.open_sum(MECHANISM, running._spaces(), total % MODULUS, 0)[0].blocks
    assert torch.equal(flatten(one), flatten(other))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_update_that_is_not_finite_is_noise_alone(bad: float) -> None:
    space = {"w": torch.Size([50])}
    update = [{"w": torch.full((50,), bad)}]
    (released,) = SHARES.open_sum(MECHANISM, [space], SHARES.add_noise(MECHANISM, update, 0, Silent(0)), 0)
    assert not flatten(released.blocks).any()


def test_a_training_that_fails_takes_part_with_zero() -> None:
    running = server()
    running.draw()

    def broken(model: torch.nn.Module) -> None:
        train_locally(model, PARTS[0], losses_of)
        raise ValueError("one of my records is odd")

    alone = noised_update(small_net(), MECHANISM, running.task(), broken, SHARES, noise_source=Silent(0))
    assert not alone.any()


def test_a_round_is_counted_before_anybody_is_asked_and_may_be_abandoned(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    running = server(file=file)
    before = vector(running)
    running.draw()
    assert Ledger.read(file).count == 1
    running.abandon()
    assert torch.equal(vector(running), before)
    running.draw()
    running.release_sum(sum(sent(running, client) for client in range(4)), 4)  # type: ignore[arg-type]
    assert Ledger.read(file).count == 2
    assert running.epsilon(1e-5, spent=True) < running.epsilon(1e-5)


def test_a_sum_of_too_few_clients_moves_nothing() -> None:
    running = server()
    before, _ = vector(running), running.draw()
    with pytest.raises(ValueError, match="3 clients"):
        running.release_sum(sum(sent(running, client) for client in range(3)), 3)  # type: ignore[arg-type]
    assert torch.equal(vector(running), before)


def test_a_sum_of_another_length_moves_nothing() -> None:
    running = server()
    running.draw()
    with pytest.raises(ValueError, match="same model"):
        running.release_sum(torch.zeros(3, dtype=torch.int64), 6)


def test_what_cannot_be_shared_is_refused() -> None:
    selecting = next(case for case in METHODS if not isinstance(case.build(0.5).noise, Gaussian))
    with pytest.raises(ValueError, match="cannot be shared"):
        server(selecting.build(0.5).with_noise(1.0))
    with pytest.raises(ValueError, match="cannot be shared"):
        server(MECHANISM.with_noise(0.0))
    with pytest.raises(ValueError, match="amplifies nothing"):
        FederatedServer(small_net(), MECHANISM, clients=6, rate=0.5, rounds=3, shares=SHARES)
    with pytest.raises(ValueError, match="least"):
        Shares(clients=3, least=3)
    crowd = Shares(clients=10**6, least=10**5)
    with pytest.raises(ValueError, match="31 bits"):
        crowd.open_sum(MECHANISM, [{"w": torch.Size([3])}], torch.zeros(3, dtype=torch.int64), 0)


def test_the_largest_sum_that_clients_can_make_does_not_wrap() -> None:
    """All clients with the same full-length update, one coordinate: the room that `Shares` leaves."""
    shares = Shares(clients=1000, least=800)
    mechanism = qg.methods.dp_sgd(clip=1.0).with_noise(1.0)
    update = [{"w": torch.tensor([9.0])}]
    one = shares.add_noise(mechanism, update, 0, Silent(0))
    (released,) = shares.open_sum(mechanism, [{"w": torch.Size([1])}], 1000 * one, 0)
    assert float(released.blocks["w"]) == pytest.approx(1 - MARGIN, rel=1e-5)
