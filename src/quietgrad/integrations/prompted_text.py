"""Texts as a language model sees them inside a prompt: its state at the prompt's last token.

    Review: a gripping, moving film
    Sentiment:                       ← the state here

A model that is about to name the sentiment has it in this state, so a linear head finds it more easily than in a mean
over tokens. The model is frozen and public, and each row depends on its own text alone.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int64
from numpy import ndarray
from torch import Tensor, nn

from quietgrad.integrations.pretrained import causal_model, causal_tokenizer

PREFIX = "prompt:"
GAP = "{}"
ROWS = 16
"""Texts that the model reads at a time; smaller groups are filled up, so that no rounding follows other texts."""
CLASS = 8
"""A prompt is padded to the next multiple of this many tokens: most texts are far shorter than the longest."""
WORTH_KEEPING = 32
"""Rows from which on a call's features are kept on the disk."""


def model_of(features: str) -> tuple[str, int | None]:
    """Read `prompt:MODEL` or `prompt:MODEL@LAYER`: the model's name, and the layer if it is given."""
    name, mark, layer = features.removeprefix(PREFIX).partition("@")
    if mark and not layer.isdigit():
        raise ValueError(f"Expected {PREFIX}MODEL@LAYER with a whole number, got {features!r}.")
    return name, int(layer) if mark else None


class PromptTokens:
    """The model's tokenizer, with a prompt around each text; texts are cut so that the prompt stays whole.

    Args:
        features: `prompt:smollm2`, or a folder after the colon.
        template: with `{}` in the place of the text.
        length: tokens of a row.

    Raises:
        ValueError: the template has no single `{}`, or leaves no room for a text.
    """

    def __init__(self, features: str, template: str, length: int) -> None:
        if template.count(GAP) != 1 or template.endswith(GAP):
            raise ValueError(
                f"Expected data.prompt with one {GAP} and words after it, got {template!r}. "
                f'An example: "Review: {GAP}\\nSentiment:".'
            )
        self._tokenizer = causal_tokenizer(model_of(features)[0])
        self.template, self.length = template, length
        self._before, self._after = (self._ids(part) for part in template.split(GAP))
        self.padding = padding_of(self._after)
        if length <= len(self._before) + len(self._after):
            raise ValueError(
                f"data.tokens = {length} leaves no room for a text: the prompt alone has "
                f"{len(self._before) + len(self._after)} tokens. Raise it."
            )

    def encode(self, texts: Sequence[str]) -> Int64[ndarray, "n t"]:
        """Token numbers of each prompt, padded at its end."""
        room = self.length - len(self._before) - len(self._after)
        rows = np.full((len(texts), self.length), self.padding, dtype=np.int64)
        for row, text in enumerate(texts):
            ids = [*self._before, *self._ids(f" {text.strip()}")[:room], *self._after]
            rows[row, : len(ids)] = ids
        return rows

    def describe(self) -> str:
        """One line for the report."""
        return f"first tokens of a text in the prompt {self.template!r}, {self.length} in all"

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def padding_of(after: Sequence[int]) -> int:
    """Return a number that cannot end a prompt, so that the last other one is the prompt's last token."""
    return 0 if after[-1] != 0 else 1


class PromptEncoder(nn.Module):
    """A frozen language model from prompts [n, t] to its state at each one's last token [n, d].

    Args:
        features: `prompt:MODEL` or `prompt:MODEL@LAYER`; the last layer if none is given.
        padding: of `PromptTokens`.
        cache: a folder in which features are kept; None keeps nothing. It holds features of private texts.
        dtype: in which the model computes; the states that come out are float32.
    """

    def __init__(
        self,
        features: str,
        padding: int,
        cache: Path | None = None,
        *,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        name, self.layer = model_of(features)
        self.model = causal_model(name)[0].base_model.eval().requires_grad_(False).to(dtype)
        self.padding, self.cache = padding, cache
        self._identity = _identity(self.model, self.layer)
        if self.layer is not None and hasattr(self.model, "layers"):
            # One more than asked for: the last one's state is normalised. Those above it are not needed.
            self.model.layers = self.model.layers[: self.layer + 1]

    @torch.no_grad()
    def forward(self, ids: Int64[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        if len(ids) == 0:
            return torch.zeros(0, self.model.config.hidden_size)
        if self.cache is None or len(ids) < WORTH_KEEPING:
            return self._states(ids)
        key = hashlib.sha256(self._identity + ids.contiguous().numpy().tobytes()).hexdigest()
        return _kept(self.cache / f"{key}.pt", lambda: self._states(ids))

    def _states(self, ids: Int64[Tensor, "n t"]) -> Float[Tensor, "n d"]:
        # A prompt's class follows its own length alone, and every group has ROWS rows.
        last = (ids.ne(self.padding) * torch.arange(ids.shape[1])).argmax(1)
        widths = ((last // CLASS + 1) * CLASS).clamp(max=ids.shape[1])
        states = torch.empty(len(ids), self.model.config.hidden_size)
        for width in widths.unique().tolist():
            for few in (widths == width).nonzero()[:, 0].split(ROWS):
                filled = torch.cat([few, few[:1].expand(ROWS - len(few))])
                states[few] = self._last(ids[filled, :width], last[filled])[: len(few)]
        return states

    def _last(self, ids: Int64[Tensor, "n t"], last: Int64[Tensor, " n"]) -> Float[Tensor, "n d"]:
        inside = torch.arange(ids.shape[1]) <= last[:, None]
        out = self.model(
            input_ids=ids,
            attention_mask=inside.long(),
            output_hidden_states=self.layer is not None,
            use_cache=False,
        )
        states: Tensor = out.last_hidden_state if self.layer is None else out.hidden_states[self.layer]
        return states[torch.arange(len(ids)), last].float()


def cache_folder() -> Path:
    """Return where features are kept: below XDG_CACHE_HOME, or ~/.cache."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quietgrad" / "prompt-features"


def _identity(model: nn.Module, layer: int | None) -> bytes:
    """Tell models, and layers of one, apart: by types, shapes, sums and squared lengths of all weights."""
    parts = [
        f"{name} {p.dtype} {tuple(p.shape)} {float(p.double().sum())!r} {float(p.double().square().sum())!r}"
        for name, p in model.named_parameters()
    ]
    return "\n".join([str(layer), *parts]).encode()


def _kept(file: Path, make: Callable[[], Tensor]) -> Tensor:
    """Read the file, or make its content and write it; a file that a crash cut off is made again."""
    if file.exists():
        try:
            found: Tensor = torch.load(file, weights_only=True)
            return found
        except (RuntimeError, EOFError, ValueError):
            pass
    made = make()
    file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    part = file.with_name(f"{file.name}.{os.getpid()}.part")
    buffer = io.BytesIO()
    torch.save(made, buffer)
    part.write_bytes(buffer.getvalue())
    part.replace(file)
    return made
