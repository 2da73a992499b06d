"""What the quick scales share: the embedded data and a few epochs, which show that everything runs and little else."""

from __future__ import annotations

from quietgrad.lab.papers.trainings import Plan

CHANGES = (
    "data.name=embedded",
    "data.private=3000",
    "data.test=1000",
    "model.name=tanh_cnn",
    "training.batch=250",
    "training.epochs=3",
    "training.lr=1.0",
    "training.momentum=0.0",
    "training.weight_decay=0.0",
    "training.schedule=constant",
    "training.micro_batch=250",
    "averaging.decay=0.9",
)


def quick(*changes: str, said: str = "") -> Plan:
    """3,000 embedded images, the 26k CNN, 36 steps."""
    return Plan(
        changes=(*CHANGES, *changes),
        said=said or "3,000 embedded Fashion-MNIST images, 26k CNN, 36 steps of 250, one seed, nothing tuned",
    )
