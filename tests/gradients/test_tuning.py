"""The choice of algorithms: measured once, within the budget, or by rule."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from quietgrad._capture.recorder import Recorder
from quietgrad._gradients import timings, tuning
from quietgrad._gradients.factored import FactoredGrad
from quietgrad._gradients.tuning import TunableGrads, Tuner
from quietgrad._kernels import levels, library


def block(n: int = 8, t: int = 4, i: int = 6, o: int = 5) -> FactoredGrad:
    g = torch.Generator().manual_seed(0)
    return FactoredGrad(torch.randn(n, t, i, generator=g), torch.randn(n, t, o, generator=g))


def counting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    timed: list[str] = []
    measure = Tuner._time

    def counted(self: Tuner, block: FactoredGrad, algorithm: str) -> float:
        timed.append(algorithm)
        return measure(self, block, algorithm)

    monkeypatch.setattr(Tuner, "_time", counted)
    return timed


def test_a_shape_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, tuner = counting(monkeypatch), Tuner(None, deterministic=False)
    first, choice = tuner.select_algorithm("w", block())
    seen = len(timed)
    assert set(timed) == {"ghost", "formed", "chunked"}
    assert isinstance(first, TunableGrads)
    assert first.algorithm == choice.algorithm
    tuner.select_algorithm("w", block(n=7))  # rounds to the same power of two
    assert len(timed) == seen
    tuner.select_algorithm("w", block(t=5))
    assert len(timed) > seen


def test_what_cannot_win_by_counting_is_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, tuner = counting(monkeypatch), Tuner(None, deterministic=False)
    tuner.select_algorithm("w", block(t=200))
    assert set(timed) == {"formed", "chunked"}, "a Gram matrix of 200 positions for a matrix of 30 numbers"


def test_trials_form_few_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    tried: list[int] = []
    monkeypatch.setattr(tuning, "TRIAL_BYTES", 5 * 30 * 4)

    def noted(_: Tuner, few: FactoredGrad, __: str) -> float:
        tried.append(few.samples)
        return 1.0

    monkeypatch.setattr(Tuner, "_time", noted)
    _, choice = Tuner(None, deterministic=False).select_algorithm("w", block(n=50))
    assert set(tried) == {5}
    assert choice.milliseconds == pytest.approx(1 / 5)


def test_a_second_run_starts_tuned(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(timings.VARIABLE, str(tmp_path / "cache"))
    timed = counting(monkeypatch)
    _, first = Tuner(None, deterministic=False).select_algorithm("w", block())
    seen = len(timed)
    _, again = Tuner(None, deterministic=False).select_algorithm("w", block(n=2000))
    assert len(timed) == seen > 0
    assert first is not None
    assert again is not None
    assert again.algorithm == first.algorithm
    (file,) = (tmp_path / "cache").iterdir()
    assert "8, 4, 6" not in file.read_text(), "how many samples there were is not written down"
    assert "4, 6, 5" in file.read_text()
    for other in {"off", *levels.levels()} - {levels.level()}:
        with levels.use_level(other):
            assert timings.MeasuredTimes().of(block().signature()[1:]) == {}, "other kernels, other times"


def test_times_of_a_kernel_that_was_changed_are_not_used(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(timings.VARIABLE, str(tmp_path / "cache"))
    built = tmp_path / "kernels.so"
    monkeypatch.setattr(library, "native", lambda: SimpleNamespace(_name=str(built)))
    monkeypatch.setattr(levels, "level", lambda: "avx2")

    def after(build: bytes) -> dict[str, float]:
        built.write_bytes(build)
        timings.code.cache_clear()
        return timings.MeasuredTimes().of((1,))

    assert after(b"first") == {}
    timings.MeasuredTimes().keep((1,), {"ghost": 2.0})
    assert after(b"first") == {"ghost": 2.0}
    assert after(b"second") == {}
    timings.code.cache_clear()


@pytest.mark.parametrize("content", ["", "[1]", '{"a": 3}', '{"a": {"b": "c"}}'])
def test_a_file_that_makes_no_sense_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, content: str
) -> None:
    monkeypatch.setenv(timings.VARIABLE, str(tmp_path))
    (tmp_path / f"times-{timings.machine()}.json").write_text(content)
    assert timings.MeasuredTimes().of((1,)) == {}
    assert Tuner(None, deterministic=False).select_algorithm("w", block())[1].milliseconds > 0


def test_a_folder_that_cannot_be_written_is_done_without(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(timings.VARIABLE, str(tmp_path / "file"))
    (tmp_path / "file").write_text("not a folder")
    assert Tuner(None, deterministic=False).select_algorithm("w", block())[1].milliseconds > 0


@pytest.mark.parametrize("setting", [None, "", "off"])
def test_nothing_is_written_unless_a_folder_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, setting: str | None
) -> None:
    monkeypatch.delenv(timings.VARIABLE, raising=False)
    if setting is not None:
        monkeypatch.setenv(timings.VARIABLE, setting)
    for home in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(home, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    timed, tuner = counting(monkeypatch), Tuner(None, deterministic=False)
    assert tuner.select_algorithm("w", block())[1].milliseconds > 0
    seen = len(timed)
    tuner.select_algorithm("w", block(n=2000))
    assert len(timed) == seen > 0, "the tuner itself knows what it measured"
    assert list(tmp_path.iterdir()) == []


def test_the_rule_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    timed, tuner = counting(monkeypatch), Tuner(None, deterministic=True)
    selected = [tuner.select_algorithm("w", block(t=t))[0] for t in (1, 2, 40)]
    assert [b.algorithm for b in selected if isinstance(b, TunableGrads)] == ["outer", "ghost", "chunked"]
    assert not timed


def test_what_does_not_fit_the_budget_is_not_kept() -> None:
    tuner = Tuner(100, deterministic=False)
    selected, _ = tuner.select_algorithm("w", block())
    assert isinstance(selected, TunableGrads)
    assert selected.memory_cost()[selected.algorithm] == 0


def test_layers_share_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Tuner, "_time", lambda _, __, algorithm: 0.0 if algorithm == "formed" else 1.0)
    tuner = Tuner(2 * 8 * 30 * 4, deterministic=False)
    tuner.begin()
    algorithms = [tuner.select_algorithm("w", block())[1].algorithm for _ in range(3)]
    assert algorithms[:2] == ["formed", "formed"]
    assert algorithms[2] != "formed"
    tuner.begin()
    assert tuner.select_algorithm("w", block())[1].algorithm == "formed"


def test_a_small_budget_gives_the_same_gradients() -> None:
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.Tanh(), nn.Flatten(), nn.Linear(64, 3)).double()
    x, y = torch.randn(5, 2, 4, 4, dtype=torch.float64), torch.tensor([0, 1, 2, 0, 1])
    sums = []
    for budget in (None, 64):
        recorder = Recorder(model, memory_budget=budget)
        recorder.attach()
        grads = recorder.collect(F.cross_entropy(model(x), y, reduction="none"))
        grads.squared_norms()
        sums.append(grads.weighted_sum(torch.linspace(0, 1, 5, dtype=torch.float64)))
        assert budget is None or all(layer.algorithm != "grouped" for layer in recorder.explain(rows=1))
        recorder.detach()
    for name in sums[0]:
        torch.testing.assert_close(sums[0][name], sums[1][name])


def test_explain_names_every_layer() -> None:
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.GroupNorm(1, 2), nn.Flatten(), nn.Linear(8, 2))
    recorder = Recorder(model)
    recorder.attach()
    recorder.collect(
        F.cross_entropy(model(torch.randn(3, 1, 4, 4)), torch.zeros(3, dtype=torch.long), reduction="none")
    )
    recorder.detach()
    layers = {layer.layer: layer for layer in recorder.explain(rows=1)}
    assert set(layers) == set(recorder.parameters)
    assert layers["3.weight"].algorithm == "outer"
    assert layers["0.weight"].milliseconds > 0
    assert layers["1.weight"].algorithm == "dense"
