"""Drawing users: who is drawn, how many of their records, and what is refused before anything is counted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

import quietgrad as qg
from quietgrad._sampling.users import Users
from tests.cases.world import SIZES, USERS, losses_of, records, run, small_net

MECHANISM = qg.methods.dp_sgd(clip=0.5).with_noise(1.0)


def test_users_are_drawn_and_their_number_is_what_counts() -> None:
    batches = qg.PoissonBatches(records(), rate=0.3, steps=200, seed=1, **USERS)
    assert (batches.units, batches.sampler.expected_batch) == (10, 3.0)
    users = batches.sampler.users
    assert users is not None
    drawn = [users.contributions(batches.sampler.draw(), 0) for _ in range(200)]
    shares = Counter(USERS["unit"][rows[0]] for draw in drawn for rows in draw)
    assert set(shares) == set(range(10))
    assert all(30 < count < 95 for count in shares.values())  # 60 ± 6.5
    assert {len(rows) for draw in drawn for rows in draw} == {min(4, size) for size in SIZES}


def test_records_of_a_user_are_drawn_afresh_whoever_else_is_there() -> None:
    users = Users.of(np.repeat([7, 8], 50), records=100, most_records=5)
    chosen = [users.contributions([1], seed)[0] for seed in range(300)]
    assert all(len(set(rows)) == 5 and min(rows) >= 50 for rows in chosen)
    assert len({row for rows in chosen for row in rows}) == 50
    assert users.contributions([0, 1], 3)[1] == users.contributions([1], 3)[0]


def test_a_user_with_a_million_records_contributes_no_more_than_others() -> None:
    ids = np.concatenate([np.arange(10), np.full(1_000_000, 10)])
    sampler = qg.PoissonSampler(len(ids), rate=1.0, steps=3, unit=ids, most_records=3)
    assert [len(rows) for rows in sampler] == [13, 13, 13]
    assert sampler.units == 11


@pytest.mark.parametrize(
    "ids",
    [["a", "b", "a"], torch.tensor([5, 6, 5]), np.array([0.5, 1.5, 0.5]), [("a", 1), "b", ("a", 1)]],
    ids=["str", "tensor", "float", "mixed"],
)
def test_ids_of_any_kind(ids: Any) -> None:
    assert Users.of(_objects(ids), records=3, most_records=2).contributions([0, 1], 0) == [[0, 2], [1]]


def _objects(ids: Any) -> Any:
    if isinstance(ids, list):
        array = np.empty(len(ids), dtype=object)
        array[:] = ids
        return array
    return ids


@pytest.mark.wrong_types
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"unit": [0] * 39, "most_records": 2}, "each of the 40 records"),
        ({"unit": [[0]] * 40, "most_records": 2}, "each of the 40 records"),
        (
            {"unit": [0] * 39 + [None], "most_records": 2},
            "no user for some records",
        ),
        ({"unit": np.array([np.nan] + [1.0] * 39), "most_records": 2}, "no user for some records"),
        ({"unit": ["a"] * 20 + [""] * 20, "most_records": 2}, "no user for some records"),
        ({"unit": [0] * 40}, "most_records >= 1"),
        ({"unit": [0] * 40, "most_records": 0}, "most_records >= 1"),
        ({"unit": [0] * 40, "most_records": 2, "pooled": "max"}, "pooled"),
        ({"most_records": 2}, "unit is missing"),
    ],
)
def test_bad_units_are_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        qg.PoissonBatches(records(), rate=0.5, steps=2, **options)


def test_a_unit_changed_on_resume_is_refused_and_nothing_is_counted(tmp_path: Path) -> None:
    file = tmp_path / "ledger.jsonl"
    batches = qg.PoissonBatches(records(), rate=0.5, steps=2, **USERS)
    with qg.Privatizer(small_net(), MECHANISM, batches, ledger=file) as private:
        saved = private.state_dict()
        assert private.ledger.description["people"] == 10
        assert "records" not in private.ledger.description  # how many somebody has is private
    before = file.read_bytes()
    for other in (
        {},
        {**USERS, "most_records": 5},
        {**USERS, "unit": [0] * 40},
        {**USERS, "pooled": "sum"},
    ):
        changed = qg.PoissonBatches(records(), rate=0.5, steps=2, **other)
        with pytest.raises(ValueError, match=r"people|most_records|pooled|records"):
            qg.Privatizer(small_net(), MECHANISM, changed, ledger=file)
        changed = qg.PoissonBatches(records(), rate=0.5, steps=2, **other)
        with (
            qg.Privatizer(small_net(), MECHANISM, changed) as elsewhere,
            pytest.raises(ValueError, match="protects"),
        ):
            elsewhere.load_state_dict(saved)
    assert file.read_bytes() == before


def test_explain_speaks_of_users() -> None:
    batches = qg.PoissonBatches(records(), rate=0.5, steps=2, **USERS)
    model = small_net()
    with qg.Privatizer(model, MECHANISM, batches) as private:
        run(private, [next(iter(batches))], model)
        said = str(private.explain())
    assert "protected: each user with all records, of which a step uses 4 at most, averaged" in said


class Texts(Dataset[Tensor]):
    """Rows of other lengths."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, row: int) -> Tensor:
        return torch.arange(1 + row % 7) + row


def padded(rows: list[Tensor]) -> Tensor:
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1)


def test_a_collate_fn_that_sorts_is_refused() -> None:
    users = {**USERS, "most_records": 7}
    orderly = qg.PoissonBatches(Texts(), rate=1.0, steps=1, collate_fn=padded, **users)
    assert sum(len(part) for part in next(iter(orderly)).split(9)) == 40
    sorting = qg.PoissonBatches(
        Texts(), rate=1.0, steps=1, collate_fn=lambda rows: padded(sorted(rows, key=len)), **users
    )
    with pytest.raises(ValueError, match="changes the order"):
        list(next(iter(sorting)).split(9))


def test_a_data_loader_draws_users_too() -> None:
    sampler = qg.PoissonSampler(40, rate=0.5, steps=2, **USERS)
    data = records()
    loader = torch.utils.data.DataLoader(
        data, batch_sampler=sampler, collate_fn=qg.collate_possibly_empty(data)
    )
    model = small_net()
    with qg.Privatizer(model, MECHANISM, sampler) as private:
        for x, y in loader:
            private.backward(losses_of(model, x, y))
            private.release()
        assert private.ledger.count == 2


def test_users_of_one_record_each_are_records() -> None:
    data, releases = TensorDataset(*records(torch.float64).tensors), []
    for users in ({}, {"unit": list(range(40)), "most_records": 3}):
        model = small_net(torch.float64)
        batches = qg.PoissonBatches.replay(data, [[1, 5, 9]], rate=0.5, **users)
        with qg.Privatizer(model, MECHANISM.with_noise(0.0), batches, deterministic=True) as private:
            releases += run(private, batches, model)
    assert all(torch.equal(block, releases[1][name]) for name, block in releases[0].items())
