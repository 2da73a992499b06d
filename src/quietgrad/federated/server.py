"""The server's side: draw clients, receive their updates, and release one noisy sum a round.

Formal guarantee: neighbours are zero-out of one *client* with all that it ever sends. Each round draws each client with
probability q; what a drawn client sends is clipped here, whatever it is, so the sum moves by at most the sensitivity.
A client that drops out, or whose message is refused, adds nothing. The ledger counts the round before anything of it
is visible, with or without anybody's update. Checked by: tests/federated/test_server.py.

With `shares` the server is not trusted with updates either. Clients clip and add their share of the noise, and the
server gets one sum of all of them (`release_sum`) or none (`abandon`). It knows who takes part, so nothing is gained by
drawing: all clients take part in every round, which is counted before their tasks are sent.
"""

from __future__ import annotations

import secrets
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Int64
from torch import Tensor, nn

from quietgrad._capture.recorder import Recorder
from quietgrad._collective import SingleProcess, default_reducer
from quietgrad._errors import PrivacyError
from quietgrad._gradients.space import Space, coordinates
from quietgrad._gradients.stages import Released
from quietgrad._mechanism.mechanism import Mechanism
from quietgrad._noise.sources import NoiseSource, as_source
from quietgrad._privatizer.accounted_run import AccountedRun
from quietgrad._privatizer.explanation import ReleaseReport, release_reports
from quietgrad._privatizer.run_state import RunState
from quietgrad._privatizer.step import Step, write_grads
from quietgrad._release.releaser import AccountedDraw
from quietgrad._sampling.poisson import PoissonSampler
from quietgrad.accounting.ledger import Ledger
from quietgrad.accounting.planning import plan
from quietgrad.federated.client import attached, load_weights
from quietgrad.federated.rounds import Task, Update
from quietgrad.federated.shares import Shares
from quietgrad.federated.updates import plain_rows, problem_of


class FederatedServer:
    """Differential privacy for federated training: the server is trusted, or with `shares` sees a secure sum only.

        for _ in range(rounds):
            clients = server.draw()
            for client in clients:
                server.receive(client, update)
            server.release()

    Args:
        model: the global model, moved by `release`.
        mechanism: calibrated to the same rate and number of rounds; its clip bounds a client's encoded update.
        clients: N, how many clients there are. Public.
        rate: q, the probability of each client in each round.
        rounds: how many are planned.
        lr: by which a released update is multiplied; 1 is federated averaging.
        ledger: a file to keep the ledger in, or in memory.
        noise_source: "default", "device" or "hardened", or a NoiseSource.
        public_seed: of masks and random bases; drawn if left out.
        shares: of the noise, which clients add under secure aggregation; None leaves the noise to the server.

    Attributes:
        start: the first weights, which clients may have too: `shared_start.shorten_task`.
        refused: the messages refused in the round in progress, and why. Private.

    Raises:
        ValueError: the mechanism has no noise yet, or the ledger is of another run.
        PrivacyError: the noise cannot be shared, or `shares` are of other clients or fewer than all of them.

    Example:
        server = qg.federated.FederatedServer(model, mechanism, clients=100, rate=0.1, rounds=5)
        clients = server.draw()
        server.release()
    """

    def __init__(
        self,
        model: nn.Module,
        mechanism: Mechanism,
        *,
        clients: int,
        rate: float,
        rounds: int,
        lr: float = 1.0,
        ledger: Path | str | None = None,
        noise_source: str | NoiseSource = "default",
        public_seed: int | None = None,
        shares: Shares | None = None,
    ) -> None:
        self.model, self.mechanism, self.lr, self.shares = model, mechanism, lr, shares
        _check_shares(shares, mechanism, clients, rate)
        self.sampler: Final = PoissonSampler(clients, rate=rate, steps=rounds)
        self.plan: Final = plan(mechanism, self.sampler)
        # Clients add the noise of shares, so no rank of this process has a part in it.
        reducer = default_reducer() if shares is None else SingleProcess()
        self._source = as_source(noise_source)
        description = {"mechanism": mechanism.describe(), "clients": clients, "server_lr": lr}
        description.update(self._source.describe())
        if shares is not None:
            description["shares"] = asdict(shares)
        self.ledger: Final = Ledger(ledger, plan=self.plan, description=description)
        self._engine = Recorder(model)
        seed = secrets.randbits(48) if public_seed is None else public_seed
        self._state = RunState(self._engine, mechanism, self.sampler, seed=seed)
        self._run = AccountedRun(
            mechanism,
            self.sampler,
            planned=self.plan,
            ledger=self.ledger,
            source=self._source,
            reducer=reducer,
            state=self._state,
        )
        self.start: Final = {name: p.detach().clone() for name, p in self._engine.parameters.items()}
        self._step: Step | None = None
        self._draw: AccountedDraw | None = None
        self._sent: dict[str, Any] = {}
        self._waiting: set[int] = set()
        self.refused: list[str] = []
        self._run.skip_spent_steps()

    @property
    def round(self) -> int:
        """The number of rounds that are over."""
        return self._state.step

    def draw(self) -> list[int]:
        """Begin a round and return the numbers of its clients, perhaps none. Private.

        Raises:
            ValueError: the last round was not released.
            PrivacyError: the plan is used up.
        """
        if self._step is not None:
            raise ValueError(
                "The last round was not released. Call release() before drawing the next clients."
            )
        if self.ledger.count >= self.sampler.steps:
            raise PrivacyError(
                f"All {self.sampler.steps} planned rounds are over, and ε covers the plan only."
            )
        self._sent = self._state.state_dict()["representations"]
        with attached(self._engine):
            self._step = Step(self.mechanism, self._state.public(), self._source)
        drawn = self.sampler.draw()
        self._waiting, self.refused = set(drawn), []
        if self.shares is not None:
            self._draw = self._run.record()  # whoever runs this server sees the sum as soon as it is opened
        return drawn

    def task(self) -> Task:
        """Return the message to every client of the round in progress."""
        assert self._step is not None, "draw() begins a round"
        return Task(
            weights={name: p.detach().clone() for name, p in self._engine.parameters.items()},
            state=self._sent,
            round=self.round,
            rounds=self.sampler.steps,
            rate=self.sampler.rate,
            seed=self._state.seed,
        )

    @property
    def covered(self) -> bool:
        """Whether ε describes this run: false for fixed noise or draws."""
        return self._run.is_private

    @property
    def releases(self) -> tuple[ReleaseReport, ...]:
        """Dimension, sensitivity and noise of each release of the round in progress, or else of the next."""
        if self._step is not None:
            return release_reports(self._step)
        with attached(self._engine):
            return release_reports(Step(self.mechanism, self._state.preview(), self._source))

    @property
    def update_bytes(self) -> int:
        """The bytes that each client of the round in progress sends; they do not depend on the draw."""
        size = sum(coordinates(space) for space in self._spaces())
        if self.shares is not None:
            return size * torch.int64.itemsize
        return size * next(iter(self._engine.parameters.values())).element_size()

    def receive(self, client: int, update: Update) -> bool:
        """Clip one client's update and add it.

        Never raises for what a client sends: the round goes on, and the ledger is the same.

        Returns:
            False if the update is refused: another shape, or a client that was not drawn.
        """
        assert self._step is not None, "draw() begins a round"
        assert self.shares is None, (
            "under secure aggregation nobody sends an update in the open: release_sum()"
        )
        problem = self._problem(client, update)
        rows = [] if problem else plain_rows(update, self._spaces(), self._device)
        if rows is None:
            problem = "no plain tensors of numbers"
        if problem or rows is None:
            self.refused.append(f"client {client}: {problem}")
            return False
        self._waiting.discard(client)
        self._step.add_encoded(rows)
        return True

    def release(self) -> None:
        """End the round: write it down, add noise, decode, and move the model; empty rounds too.

        Raises:
            BaseException: whatever broke the release off. The round is over, and its clients are not released again.
        """
        step = self._step
        assert step is not None, "draw() begins a round"
        assert self.shares is None, "the clients' noise is in the secure sum: release_sum()"
        draw = self._run.record()
        # Whoever stops this may have seen the release: the round is over, and these clients are not released again.
        try:
            with draw:
                released = step.release(draw)
            self._move(step, released)
        except BaseException:
            self._state.noise.forget_secrets()
            raise
        finally:
            self._ended()

    def release_sum(self, total: Int64[Tensor, " p"], clients: int) -> None:
        """End the round with an opened secure sum: Σ of what clients sent, with their noise in it.

        Args:
            clients: how many are in the sum.

        Raises:
            PrivacyError: they are fewer than `shares.least`. Such a sum has too little noise and should not exist; the
                model does not move.
            ValueError: the sum has another length.
        """
        step, shares, draw = self._step, self.shares, self._draw
        assert step is not None, "draw() begins a round"
        assert shares is not None, "without shares the server adds the noise: release()"
        assert draw is not None, "under secure aggregation draw() writes the ledger's line"
        if clients < shares.least:
            raise PrivacyError(
                f"The sum was opened with {clients} clients, of which {shares.least} are needed for its noise. Set the "
                "threshold of the secure aggregation to shares.least, and tell these clients: ε does not cover them."
            )
        released = shares.open_sum(self.mechanism, self._spaces(), total, self.round)
        with draw:
            for part in released:
                draw.accept(part)
        self._move(step, released)
        self._ended()

    def abandon(self) -> None:
        """End a round whose sum could not be opened: it is counted, and the model stays as it was."""
        assert self._step is not None, "draw() begins a round"
        assert self.shares is not None, "without shares every round is released: release()"
        self._ended()

    @property
    def in_round(self) -> bool:
        """Whether a round was drawn that is neither released nor abandoned."""
        return self._step is not None

    def epsilon(self, delta: float, *, spent: bool = False) -> float:
        """Return ε of one client over the whole plan at this δ; `spent=True` for the ledger's rounds so far."""
        return self._run.epsilon(delta, spent=spent)

    def state_dict(self) -> dict[str, Any]:
        """Return a checkpoint: weights, public states, and the head of the ledger."""
        weights = {name: p.detach().clone() for name, p in self._engine.parameters.items()}
        return {**self._run.state_dict(), "weights": weights}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from a checkpoint.

        Raises:
            ValueError: it was made with another mechanism or model, or the ledger lacks lines that it saw.
        """
        self._run.check_checkpoint(saved)
        load_weights(self.model, saved["weights"])
        self._state.load_state_dict(saved)
        self._run.skip_spent_steps()

    def close(self) -> None:
        """Close the ledger's file."""
        self.ledger.close()

    def _move(self, step: Step, released: list[Released]) -> None:
        with attached(self._engine):
            update = self._state.post_process(step.decode(released), step.public)
        parameters = self._engine.parameters
        write_grads(self._state.space, update)
        with torch.no_grad():
            for parameter in parameters.values():
                assert parameter.grad is not None
                parameter.sub_(self.lr * parameter.grad)
                parameter.grad = None

    def _ended(self) -> None:
        self._step, self._draw, self._waiting = None, None, set()
        self._state.step += 1

    def _spaces(self) -> list[Space]:
        step = self._step
        assert step is not None, "draw() begins a round"
        return [step.codec(index).space for index in range(len(self.mechanism.releases))]

    @property
    def _device(self) -> torch.device:
        return next(iter(self._engine.parameters.values())).device

    def _problem(self, client: int, update: Any) -> str:
        if client not in self._waiting:
            return "not drawn in this round, or sent before"
        return problem_of(update, self._spaces())


def _check_shares(shares: Shares | None, mechanism: Mechanism, clients: int, rate: float) -> None:
    if shares is None:
        return
    shares.check(mechanism)
    if shares.clients != clients or rate != 1.0:
        raise PrivacyError(
            f"Expected rate=1 and shares of all {clients} clients, got rate={rate:g} and shares of {shares.clients}. A "
            "server that is not trusted sees who is drawn, so drawing amplifies nothing. Use all clients in "
            "every round; some may drop out."
        )
