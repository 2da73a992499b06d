"""Texts and models of a few hundred parameters, without any download."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

VOCABULARY, LONGEST = 24, 8


class Records(torch.utils.data.Dataset[dict[str, Any]]):
    """Token numbers of several lengths; the label follows from the first."""

    def __init__(self, count: int, *, seed: int = 0, tokens: bool = False) -> None:
        rng = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 9, (count,), generator=rng).tolist()
        self.rows = [torch.randint(1, VOCABULARY, (n,), generator=rng).tolist() for n in lengths]
        self.tokens = tokens

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        row = self.rows[index]
        labels = {"labels": row} if self.tokens else {"labels": row[0] % 3}
        return {"input_ids": row, **labels}


def pad(records: list[dict[str, Any]]) -> dict[str, Tensor]:
    """As a collator of transformers does, to one length; records of 17 tokens are one too long for the models."""
    longest = max(LONGEST, *(len(record["input_ids"]) for record in records))

    def padded(values: list[int], fill: int) -> list[int]:
        return values + [fill] * (longest - len(values))

    batch = {
        "input_ids": torch.tensor([padded(r["input_ids"], 0) for r in records]),
        "attention_mask": torch.tensor([padded([1] * len(r["input_ids"]), 0) for r in records]),
    }
    if "labels" in records[0]:
        tokens = isinstance(records[0]["labels"], list) and isinstance(records[0]["labels"][0], int)
        labels = [padded(r["labels"], -100) if tokens else r["labels"] for r in records]
        batch["labels"] = torch.tensor(labels)
    return batch


def bert(head: str = "BertForSequenceClassification", **options: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "intermediate_size": 12, "max_position_embeddings": 16, "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0, "num_labels": 3,
    }  # fmt: skip
    return getattr(transformers, head)(transformers.BertConfig(**(sizes | options)))


def llama(**options: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "intermediate_size": 12, "max_position_embeddings": 16, "bos_token_id": 1,
        "eos_token_id": 2, "tie_word_embeddings": True,
    }  # fmt: skip
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**(sizes | options)))


def gpt2(**options: Any) -> nn.Module:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "n_embd": 8, "n_layer": 1, "n_head": 2, "n_positions": 16, "bos_token_id": 1,
        "eos_token_id": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0,
    }  # fmt: skip
    return transformers.GPT2LMHeadModel(transformers.GPT2Config(**(sizes | options)))


def t5() -> nn.Module:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "d_model": 8, "d_kv": 4, "d_ff": 12, "num_layers": 1, "num_heads": 2,
        "decoder_start_token_id": 0, "dropout_rate": 0.0,
    }  # fmt: skip
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes))


def bart(head: str = "BartForConditionalGeneration") -> nn.Module:
    import transformers

    torch.manual_seed(0)
    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY, "d_model": 8, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 12,
        "encoder_attention_heads": 2, "decoder_attention_heads": 2, "decoder_ffn_dim": 12, "pad_token_id": 0,
        "max_position_embeddings": 16, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 2,
        "forced_eos_token_id": 2, "dropout": 0.0,
    }  # fmt: skip
    return getattr(transformers, head)(transformers.BartConfig(**sizes))


def arguments(folder: Path, **options: Any) -> Any:
    import transformers

    settings: dict[str, Any] = {
        "output_dir": str(folder), "max_steps": 4, "per_device_train_batch_size": 4, "gradient_accumulation_steps": 2,
        "learning_rate": 0.05, "logging_steps": 1, "save_strategy": "no", "report_to": "none", "use_cpu": True,
    }  # fmt: skip
    return transformers.TrainingArguments(**(settings | options))
