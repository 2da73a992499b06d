"""MiniLM tuned on public rated text, without privacy: where private and ordinary trainings on SST-2 begin.

The target of a text with rating r is positive with probability σ(2r). Beside sentences there are the lexicon's words,
alone and in short phrases, because SST-2's training part is mostly phrases. Public sentences are held out to watch it
on; no record of SST-2 is looked at.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn

from benchmarks.fine_tuning.public_text import Rated, rated_sentences, rated_words
from quietgrad.integrations.pretrained import model_folder
from quietgrad.integrations.text_folder import FolderTokens

TOKENS = 48
BATCH = 32
EPOCHS = 2
HELD_OUT = 1000
CLEAR = 0.5
"""Sentences that people rate nearer to zero are left out."""
RATE = 1e-4
HEAD_RATE = 3e-3
START, WARM = "warmed_on", "warm"
"""The entry of an encoder's config, and what this file enters."""
SHARPNESS = 2.0
"""Of the logistic function of a rating."""
PHRASES = {
    "{}": 1.0,
    "very {}": 1.2,
    "not {}": -0.74,
    "not very {}": -0.74,
    "a {} thing": 1.0,
    "lacks anything {}": -0.74,
}
"""What a word becomes, and what its rating is multiplied by: -0.74 is what the lexicon's authors measured for
negations, 1.2 is a guess."""


class Texts(NamedTuple):
    """Token numbers in the order of their lengths, and the probabilities that they are positive."""

    ids: Int64[Tensor, "n t"]
    positive: Float[Tensor, " n"]


class Warmed(nn.Module):
    """MiniLM and a head on the mean over the tokens at unit length, as it is read later.

    Args:
        encoder: MiniLM.
    """

    def __init__(self, encoder: Any) -> None:
        super().__init__()
        self.encoder = encoder
        self.head = nn.Linear(encoder.config.hidden_size, 1)

    def forward(self, ids: Int64[Tensor, "n t"]) -> Float[Tensor, " n"]:
        real = ids.ne(0)
        hidden = self.encoder(ids, real.long()).last_hidden_state
        logits: Tensor = self.head(F.normalize((hidden * real[:, :, None]).sum(1)))[:, 0]
        return logits


def examples(folder: Path, seed: int = 0) -> tuple[list[Rated], list[Rated]]:
    """Clear sentences and one phrase for each word to train on; clear sentences that are held out."""
    chance = random.Random(seed)
    clear = [r for some in rated_sentences(folder).values() for r in some if abs(r.rating) >= CLEAR]
    random.Random(0).shuffle(clear)
    return clear[HELD_OUT:] + [_phrase(word, chance) for word in rated_words(folder)], clear[:HELD_OUT]


def _phrase(word: Rated, chance: random.Random) -> Rated:
    form, factor = chance.choice(list(PHRASES.items()))
    return Rated(form.format(word.text), factor * word.rating)


def warm(folder: Path, target: Path) -> dict[str, Any]:
    """Tune on public text and write the encoder into a folder in Hugging Face's format."""
    import transformers

    torch.manual_seed(0)
    model = Warmed(
        transformers.AutoModel.from_pretrained(model_folder("minilm"), add_pooling_layer=False)
    ).train()
    steps = EPOCHS * (len(examples(folder)[0]) // BATCH + 1)
    optimizer, schedule = steps_of(model, RATE, steps)
    held_out, curve = _texts(examples(folder)[1]), []
    for epoch in range(EPOCHS):
        for ids, positive in _batches(_texts(examples(folder, epoch)[0])):
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(ids), positive).backward()
            optimizer.step()
            schedule.step()
        curve.append(_accuracy(model, held_out))
        print(curve, flush=True)
    save(model, target, WARM)
    return {"held_out_public": curve[-1], "held_out_curve": curve, "steps": steps}


def steps_of(model: Warmed, rate: float, steps: int) -> tuple[torch.optim.Optimizer, Any]:
    """AdamW, its rate a tenth of the steps up, then linearly down."""
    optimizer = torch.optim.AdamW(
        [
            {"params": model.encoder.parameters(), "lr": rate},
            {"params": model.head.parameters(), "lr": HEAD_RATE},
        ],
        weight_decay=0.01,
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, [rate, HEAD_RATE], total_steps=steps + 1, pct_start=0.1, anneal_strategy="linear"
    )
    return optimizer, schedule


def save(model: Warmed, target: Path, start: str) -> None:
    """The encoder in Hugging Face's format, with what it was warmed on for the names of runs."""
    import transformers

    model.encoder.config.update({START: start})
    model.encoder.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(model_folder("minilm")).save_pretrained(target)


def start_of(name: str) -> str:
    """What an encoder was warmed on; nothing for MiniLM as it comes."""
    if name == "minilm":
        return ""
    found: str = json.loads((Path(name) / "config.json").read_text()).get(START, WARM)
    return found


def likely(ratings: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    """The probabilities that texts of such ratings are positive."""
    return torch.sigmoid(SHARPNESS * ratings)


def _texts(rated: list[Rated]) -> Texts:
    ids = torch.from_numpy(FolderTokens("minilm", TOKENS).encode([text for text, _ in rated]))
    order = ids.ne(0).sum(1).argsort(stable=True)
    ratings = torch.tensor([rating for _, rating in rated])
    return Texts(ids[order], likely(ratings)[order])


def _batches(texts: Texts) -> Iterator[Texts]:
    """An epoch; of each 1,024 texts in a random order those of like length come together, to save padding."""
    for some in torch.randperm(len(texts.ids)).split(32 * BATCH):
        few = some.sort().values.split(BATCH)
        for place in torch.randperm(len(few)).tolist():
            ids = texts.ids[few[place]]
            yield Texts(ids[:, : int(ids.ne(0).sum(1).max())], texts.positive[few[place]])


@torch.no_grad()
def _accuracy(model: Warmed, texts: Texts) -> float:
    """Of the sign, in percent."""
    model.eval()
    found = torch.cat([model(ids[:, : int(ids.ne(0).sum(1).max())]) for ids in texts.ids.split(BATCH)])
    model.train()
    return round(100 * float(((found > 0) == (texts.positive > 0.5)).double().mean()), 2)
