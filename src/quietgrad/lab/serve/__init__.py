"""A finished model in use: load it, predict with it, hand it on."""

from quietgrad.lab.serve.export import to_hugging_face, to_onnx, to_safetensors
from quietgrad.lab.serve.loading import load
from quietgrad.lab.serve.model import ModelFacts, TrainedModel

__all__ = ["ModelFacts", "TrainedModel", "load", "to_hugging_face", "to_onnx", "to_safetensors"]
