"""Log a private run to TensorBoard, MLflow, Weights & Biases or a function.

    log = ReleasedLog(private, tensorboard(SummaryWriter()), delta=1e-5)
    for batch in batches:
        ...
        private.release()
        optimizer.step()
        log.step(test_accuracy=accuracy)  # now and then; `log.step()` else

A log is public as soon as somebody reads it, so only released quantities pass: ε, the noise, the length of the released
gradient, and what the caller measured on public or test data and calls so. Training losses, accuracies on private
batches, sizes of batches and norms before the noise are refused by name.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from torch import Tensor

from quietgrad._errors import PrivacyError
from quietgrad._privatizer.privatizer import Privatizer

__all__ = ["ReleasedLog", "mlflow", "tensorboard", "wandb"]

Hook = Callable[[Mapping[str, float], int], None]
"""(name → number, step) → nothing: all that a logging tool has to be."""

OF_PUBLIC_DATA = re.compile(r"(test|val|validation|eval|public|synthetic)[_/ ].+")
OF_THE_PLAN = frozenset({"lr", "learning_rate", "epoch", "seconds", "momentum", "weight_decay"})
PRIVATE = {
    r"(^|_)loss(es)?$": "a loss of private records",
    r"train": "measured on private records",
    r"(^|_)acc(uracy)?$": "measured on whatever was at hand",
    r"batch": "the size of a Poisson batch tells who was drawn",
    r"clip": "how many rows were clipped tells about their gradients",
    r"(grad|norm)": "a norm from before the noise",
}
"""What names give away."""


class ReleasedLog:
    """Hand released quantities of a run to a hook, once for each step.

    Args:
        private: the run.
        hook: of `tensorboard`, `mlflow`, `wandb`, or any function of (numbers, step).
        delta: at which ε is stated.
        every: ε is computed anew after so many steps; it takes the accountant some milliseconds.
    """

    def __init__(self, private: Privatizer, hook: Hook, *, delta: float, every: int = 10) -> None:
        if every < 1:
            raise ValueError(f"Expected every >= 1, got {every}.")
        self._private, self._hook, self._delta, self._every = private, hook, delta, every

    def step(self, **further: float) -> None:
        """Log what the last release made public, and further public numbers.

        Args:
            further: `test_…`, `val_…`, `eval_…`, `public_…` or `synthetic_…`, measured on data of that kind; `lr`,
                `epoch` and the like, which the plan fixed.

        Raises:
            PrivacyError: a name says that the number was computed from private records.
        """
        values = {name: _checked(name, value) for name, value in further.items()}
        step = self._private.step
        released = {"released_gradient_norm": self._length()}
        if step % self._every == 0 or self._private.steps_left == 0:
            released["epsilon"] = self._private.epsilon(self._delta, spent=True)
        self._hook(released | values, step)

    def _length(self) -> float:
        squares = [
            float(parameter.grad.double().square().sum())
            for parameter in self._private.parameters.values()
            if parameter.grad is not None
        ]
        return math.sqrt(sum(squares))


def tensorboard(writer: Any) -> Hook:
    """Log numbers as scalars of a `torch.utils.tensorboard.SummaryWriter`."""

    def log(values: Mapping[str, float], step: int) -> None:
        for name, value in values.items():
            writer.add_scalar(name, value, step)

    return log


def mlflow(client: Any) -> Hook:
    """Log numbers as metrics of the active run; `client` is the module `mlflow`."""

    def log(values: Mapping[str, float], step: int) -> None:
        client.log_metrics(dict(values), step=step)

    return log


def wandb(run: Any) -> Hook:
    """Log numbers as history of a run of Weights & Biases."""

    def log(values: Mapping[str, float], step: int) -> None:
        run.log(dict(values), step=step)

    return log


def _checked(name: str, value: Any) -> float:
    if isinstance(value, Tensor) and value.requires_grad:
        raise PrivacyError(
            f"{name} comes from a forward that records gradients. Log numbers of an evaluation."
        )
    if not (OF_PUBLIC_DATA.fullmatch(name) or name in OF_THE_PLAN):
        why = next(
            (said for pattern, said in PRIVATE.items() if re.search(pattern, name)),
            "not known to be released",
        )
        raise PrivacyError(
            f"{name!r} is refused: {why}, which ε does not cover. Measure it on test or public data and call it "
            f"test_{name} or public_{name}; inside private data use research=True, which gives up the guarantee."
        )
    return float(value)
