"""A loop of one's own: only the last layer and the head train; what is frozen costs neither memory nor noise.

python examples/own_loop.py train.tsv dev.tsv --model FOLDER     # columns sentence and label
"""

import argparse
import csv

import torch
import torch.nn.functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import quietgrad as qg
from quietgrad.integrations.pretrained import model_folder

parser = argparse.ArgumentParser()
parser.add_argument("train")
parser.add_argument("dev")
parser.add_argument("--model", default="minilm")
parser.add_argument("--steps", type=int, default=200)
options = parser.parse_args()

tokenizer = AutoTokenizer.from_pretrained(model_folder(options.model))
model = AutoModelForSequenceClassification.from_pretrained(model_folder(options.model), num_labels=2)
model.bert.embeddings.requires_grad_(False)
model.bert.encoder.layer[:-1].requires_grad_(False)


def records(path):
    with open(path, encoding="utf-8") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def collate(rows):
    sentences = [r["sentence"] for r in rows]
    length = {"padding": "max_length", "truncation": True, "max_length": 64}  # the same for every draw
    texts = tokenizer(sentences, return_tensors="pt", **length)
    return texts, torch.tensor([int(r["label"]) for r in rows])


train, dev = records(options.train), records(options.dev)
batches = qg.PoissonBatches(train, rate=min(1.0, 512 / len(train)), steps=options.steps, collate_fn=collate)
mechanism = qg.calibrate(qg.methods.dp_sgd(clip=1.0), batches, epsilon=8.0, delta=1e-5)
optimizer = torch.optim.AdamW((p for p in model.parameters() if p.requires_grad), lr=1e-3)

with qg.Privatizer(model, mechanism, batches) as private:
    for batch in batches:
        for texts, labels in batch.split(64):
            private.backward(F.cross_entropy(model(**texts).logits, labels, reduction="none"))
        private.release()
        optimizer.step()

model.eval()
with torch.no_grad():
    texts, labels = collate(dev)
    right = (model(**texts).logits.argmax(1) == labels).float().mean()
print(f"accuracy {right:.3f}, epsilon = {private.epsilon(1e-5):.2f} at delta = 1e-5")
