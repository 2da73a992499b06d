"""Private fine-tuning measured: heads on frozen features, adapters, whole models, a language model.

Everything is resumable: features lie in a cache by chunks, every finished run is a line of the results file and is not
run again.

    python -m benchmarks.fine_tuning features sst2 --cache CACHE            # MiniLM, 4,000 sentences a chunk
    python -m benchmarks.fine_tuning features cifar10 --cache CACHE         # EfficientNet-Lite0, 2,500 images a chunk
    python -m benchmarks.fine_tuning head sst2 --cache CACHE --epsilons 1,3,8 --seeds 2
    python -m benchmarks.fine_tuning tune lora --sentences 4000 --epsilons 8
    python -m benchmarks.fine_tuning language --sentences 400

$QUIETGRAD_DATA is where the data are; the weights are packages (docs/fine_tuning.md).
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int64
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import quietgrad as qg
from quietgrad.features.encoders import unit
from quietgrad.integrations.pretrained import causal_model, image_encoder
from quietgrad.integrations.text_folder import FolderTokens, TextEncoder
from quietgrad.lab.data import load
from quietgrad.lab.models import build
from quietgrad.quiet.recipe import all_at_once, quiet_program, rescaled_by_mean, train_head, zero_head
from quietgrad.quiet.rule import settings

RESULTS = Path("docs/results/fine_tuning.json")
DELTA = 1e-5
CHUNK = {"sst2": 4000, "cifar10": 2500}
TOKENS = 64
MICRO_BATCH = 64


# ---- results --------------------------------------------------------------------------------------------------------


def once(key: str, measure: Callable[[], dict[str, Any]]) -> None:
    """Measure and write down, unless it has been done."""
    done: dict[str, Any] = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    if key not in done:
        begun = time.perf_counter()
        found = measure()
        found["seconds"] = round(time.perf_counter() - begun, 1)
        done = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        RESULTS.write_text(json.dumps({**done, key: found}, indent=1, sort_keys=True) + "\n")
        print(key, found, flush=True)


# ---- features of frozen encoders ------------------------------------------------------------------------------------


def features(task: str, cache: Path, seconds: float) -> None:
    """Encode what is not in the cache yet, for about so long."""
    begun = time.perf_counter()
    encoder, parts = _encoder_and_parts(task)
    for part, (inputs, labels) in parts.items():
        for start in range(0, len(inputs), CHUNK[task]):
            file = cache / f"{task}_{part}_{start}.npz"
            if not file.exists() and time.perf_counter() - begun < seconds:
                rows = inputs[start : start + CHUNK[task]]
                encoded = torch.cat([encoder(few) for few in rows.split(50)])
                np.savez(
                    file, x=encoded.numpy().astype(np.float16), y=labels[start : start + CHUNK[task]].numpy()
                )
                print(file, flush=True)


def _encoder_and_parts(task: str) -> tuple[nn.Module, dict[str, tuple[Tensor, Tensor]]]:
    if task == "sst2":
        data, encoder = load("sst2", words=FolderTokens("minilm", TOKENS)), TextEncoder("minilm")
    else:
        data, encoder = load("cifar10", as_stored=True), image_encoder("efficientnet_lite0")  # type: ignore[assignment]
    order = torch.randperm(len(data.private), generator=torch.Generator().manual_seed(0))
    private = tuple(t[order] for t in data.private.tensors)
    return encoder, {"test": data.test.tensors, "train": private}  # type: ignore[dict-item]


def cached(
    task: str, part: str, cache: Path, most: int | None = None
) -> tuple[Float[Tensor, "n d"], Int64[Tensor, " n"]]:
    """What is in the cache, in the order of the chunks."""
    files = sorted(cache.glob(f"{task}_{part}_*.npz"), key=lambda file: int(file.stem.rsplit("_", 1)[1]))
    chunks = [np.load(file) for file in files]
    if not chunks:
        raise SystemExit(f"No features of {task} in {cache}. Run `features {task}` first.")
    rows = np.concatenate([chunk["x"] for chunk in chunks]).astype(np.float32)
    labels = np.concatenate([chunk["y"] for chunk in chunks])
    return torch.from_numpy(rows[:most]), torch.from_numpy(labels[:most])


def head(task: str, cache: Path, epsilon: float, most: int) -> dict[str, Any]:
    """The quiet recipe without rescaling: released mean, unit length, linear head on full batches."""
    (rows, labels), (test, truth) = cached(task, "train", cache, most), cached(task, "test", cache)
    rows, classes = unit(rows), int(truth.max()) + 1
    rule = settings(records=len(rows), classes=classes, epsilon=epsilon, delta=DELTA)
    program = quiet_program("mean", rows.shape[1:], rule)
    batches = all_at_once(TensorDataset(rows, labels), rule)
    program = qg.calibrate(program, batches, epsilon=epsilon, delta=DELTA)
    statistics = qg.Statistics(program, batches)
    rescale = rescaled_by_mean(statistics, rows)
    batches = all_at_once(TensorDataset(rescale(rows), labels), rule)
    linear = zero_head(rescale.width, classes)
    train_head(linear, program, batches, rule, statistics.ledger)
    return {
        "records": len(rows),
        "accuracy": _percent(linear(rescale(unit(test))), truth),
        "steps": rule.steps,
    }


def head_without_noise(task: str, cache: Path, most: int) -> dict[str, Any]:
    """The same head on the same features by L-BFGS, a little weight decay, no privacy."""
    (rows, labels), (test, truth) = cached(task, "train", cache, most), cached(task, "test", cache)
    mean = unit(rows).mean(0)
    rows, test = unit(unit(rows) - mean), unit(unit(test) - mean)
    linear = nn.Linear(rows.shape[1], int(truth.max()) + 1)
    optimizer = torch.optim.LBFGS(linear.parameters(), lr=1.0, max_iter=200, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimizer.zero_grad()
        value = F.cross_entropy(linear(rows), labels) + 1e-6 * linear.weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    return {"records": len(rows), "accuracy": _percent(linear(test), truth)}


def _percent(logits: Tensor, truth: Tensor) -> float:
    return round(100 * float((logits.argmax(1) == truth).double().mean()), 2)


# ---- adapters and whole models on SST-2 -----------------------------------------------------------------------------


def tune(way: str, sentences: int, epsilon: float, epochs: float, lr: float) -> dict[str, Any]:
    """MiniLM with a classification head, trained in one of the ways; ε = 0 stands for no privacy."""
    data = load("sst2", private=sentences, words=FolderTokens("minilm", TOKENS))
    torch.manual_seed(0)
    lora = {"lora": {"rank": 4, "targets": ["query", "value"]}} if way == "lora" else {}
    model = build("hf:minilm", (TOKENS,), 2, **lora)
    if way == "bitfit":
        for name, parameter in model.named_parameters():
            parameter.requires_grad_("bias" in name or "classifier.classifier" in name)
    batches = qg.PoissonBatches(data.private, rate=256 / sentences, steps=math.ceil(epochs * sentences / 256))
    method = qg.methods.rgp(rank=4, clip=1.0) if way == "rgp" else qg.methods.dp_sgd(clip=1.0)
    mechanism = (
        qg.calibrate(method, batches, epsilon=epsilon, delta=DELTA) if epsilon else method.with_noise(0.0)
    )
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=lr)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / batches.steps))
    with qg.Privatizer(model, mechanism, batches) as private:
        for batch in batches:
            for ids, labels in batch.split(MICRO_BATCH):
                used = max(2, int(ids.ne(0).sum(1).max()))
                private.backward(F.cross_entropy(model(ids[:, :used]), labels, reduction="none"))
            private.release()
            optimizer.step()
            schedule.step()
    return {
        "records": sentences,
        "accuracy": _accuracy(model, data.test),
        "steps": batches.steps,
        "trained": sum(p.numel() for p in trained),
    }


@torch.no_grad()
def _accuracy(model: nn.Module, data: TensorDataset) -> float:
    model.eval()
    ids, truth = data.tensors
    return _percent(torch.cat([model(few) for few in ids.split(MICRO_BATCH)]), truth)


# ---- a language model -----------------------------------------------------------------------------------------------


def language(sentences: int, epsilon: float, steps: int, batch: int) -> dict[str, Any]:
    """SmolLM2-135M with LoRA on SST-2 sentences: perplexity on those of the dev part; 0 steps: before."""
    import peft

    torch.manual_seed(0)
    plain, tokenizer = causal_model("smollm2")
    adapters = peft.LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
    model = peft.get_peft_model(plain, adapters)
    train, dev = (_sentences(tokenizer, part, most) for part, most in (("train", sentences), ("dev", 200)))
    if steps:
        _train_language(model, train, epsilon, steps, batch)
    return {
        "records": sentences,
        "perplexity": round(_perplexity(model, dev), 2),
        "megabytes": _peak(),
        "steps": steps,
    }


def _train_language(model: nn.Module, data: TensorDataset, epsilon: float, steps: int, batch: int) -> None:
    batches = qg.PoissonBatches(data, rate=batch / len(data), steps=steps)
    method = qg.methods.dp_sgd(clip=1.0)
    mechanism = (
        qg.calibrate(method, batches, epsilon=epsilon, delta=DELTA) if epsilon else method.with_noise(0.0)
    )
    optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=2e-3)
    with qg.Privatizer(model, mechanism, batches) as private:
        for drawn in batches:
            for (ids,) in drawn.split(16):
                private.backward(_token_losses(model, ids))
            private.release()
            optimizer.step()


def _token_losses(model: nn.Module, ids: Int64[Tensor, "n t"]) -> Float[Tensor, " n"]:
    ids = ids[:, : max(2, int(ids.ge(0).sum(1).max()))]
    labels = ids[:, 1:]
    logits = model(input_ids=ids.clamp_min(0), attention_mask=ids.ge(0).long(), use_cache=False).logits[
        :, :-1
    ]
    each = F.cross_entropy(logits.transpose(1, 2), labels.clamp_min(0), reduction="none") * labels.ge(0)
    return each.sum(1) / labels.ge(0).sum(1).clamp_min(1)


@torch.no_grad()
def _perplexity(model: nn.Module, data: TensorDataset) -> float:
    (ids,) = data.tensors
    return math.exp(float(torch.cat([_token_losses(model.eval(), few) for few in ids.split(16)]).mean()))


def _sentences(tokenizer: Any, part: str, most: int) -> TensorDataset:
    from quietgrad.lab.data.catalogue import READERS, locate
    from quietgrad.lab.data.files import read_bytes, require

    lines = read_bytes(require(locate(READERS["sst2"], None), f"{part}.tsv")).decode().splitlines()[1:]
    chosen = np.random.default_rng(0).permutation(len(lines))[:most]
    ids = [tokenizer(lines[row].rpartition("\t")[0])["input_ids"][:48] for row in chosen]
    rows = torch.full((len(ids), 48), -1)
    for row, found in enumerate(ids):
        rows[row, : len(found)] = torch.tensor(found)
    return TensorDataset(rows)


def _peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


# ---- the command ----------------------------------------------------------------------------------------------------


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["features", "head", "tune", "language"])
    parser.add_argument("which", nargs="?", default="lora")
    parser.add_argument("--cache", type=Path, default=Path("features"))
    parser.add_argument("--seconds", type=float, default=math.inf)
    parser.add_argument("--epsilons", default="1,3,8")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--records", type=int, default=48_000)
    parser.add_argument("--sentences", type=int, default=4000)
    parser.add_argument("--epochs", type=float, default=3.0)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    given = parser.parse_args()
    epsilons = [float(epsilon) for epsilon in given.epsilons.split(",")]
    if given.what == "features":
        given.cache.mkdir(parents=True, exist_ok=True)
        features(given.which, given.cache, given.seconds)
    for epsilon in epsilons if given.what != "features" else []:
        for seed in range(given.seeds):
            _measure(given, epsilon, seed)


def _measure(given: argparse.Namespace, epsilon: float, seed: int) -> None:
    name = f"{given.what} {given.which}, epsilon {epsilon:g}, run {seed}"
    if given.what == "head":
        most = f", {given.records} records"
        plain = f"head {given.which}, non-private{most}"
        once(plain, lambda: head_without_noise(given.which, given.cache, given.records))
        once(name + most, lambda: head(given.which, given.cache, epsilon, given.records))
    elif given.what == "tune":
        detail = f", {given.sentences} sentences, {given.epochs:g} epochs, lr {given.lr:g}"
        once(name + detail, lambda: tune(given.which, given.sentences, epsilon, given.epochs, given.lr))
    else:
        once("language before", lambda: language(given.sentences, 0.0, 0, 1))
        detail = f", {given.sentences} sentences, {given.steps} steps of {given.batch}"
        once(name + detail, lambda: language(given.sentences, epsilon, given.steps, given.batch))


if __name__ == "__main__":
    main()
