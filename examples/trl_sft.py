"""Supervised fine-tuning with TRL on private conversations: a JSONL file with a prompt and a completion a line.

python examples/trl_sft.py conversations.jsonl held_out.jsonl --model FOLDER

A prompt or completion is a text, or a list of messages for the tokenizer's chat template.
"""

import argparse
import json

from datasets import Dataset
from peft import LoraConfig
from trl import SFTConfig

from quietgrad.integrations.hugging_face import PrivacyArguments
from quietgrad.integrations.pretrained import causal_model
from quietgrad.integrations.trl import PrivateSFTTrainer


def records(path):  # in memory: load_dataset would leave a copy of them in a cache folder
    with open(path, encoding="utf-8") as file:
        return Dataset.from_list([json.loads(line) for line in file if line.strip()])


parser = argparse.ArgumentParser()
parser.add_argument("train")
parser.add_argument("held_out")
parser.add_argument("--model", default="smollm2")
parser.add_argument("--epsilon", type=float, default=8.0)
parser.add_argument("--steps", type=int, default=50)
parser.add_argument("--batch", type=int, default=64)
parser.add_argument("--length", type=int, default=128)
parser.add_argument("--out", default="runs/trl_sft")
options = parser.parse_args()

model, tokenizer = causal_model(options.model)
tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
trainer = PrivateSFTTrainer(
    model,
    SFTConfig(options.out, max_steps=options.steps, per_device_train_batch_size=8, max_length=options.length,
              gradient_accumulation_steps=options.batch // 8, learning_rate=2e-3, bf16=False),
    privacy=PrivacyArguments(epsilon=options.epsilon, delta=1e-5, pad_to=options.length),
    train_dataset=records(options.train),
    eval_dataset=records(options.held_out),
    processing_class=tokenizer,
    peft_config=LoraConfig(task_type="CAUSAL_LM", r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"]),
)  # fmt: skip
trainer.train()
print(f"held-out loss {trainer.evaluate()['eval_loss']:.3f}")
print(f"epsilon = {trainer.private.epsilon(1e-5):.2f} at delta = 1e-5")
