"""Private fine-tuning in Hugging Face's Trainer."""

from __future__ import annotations

try:
    import accelerate as _accelerate  # noqa: F401
    import transformers as _transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "quietgrad.integrations.hugging_face needs transformers and accelerate: "
        "pip install 'quietgrad[hugging-face]'."
    ) from error

from quietgrad.integrations.hugging_face.example_losses import example_losses
from quietgrad.integrations.hugging_face.privacy_arguments import PrivacyArguments
from quietgrad.integrations.hugging_face.private_trainer import PrivateTrainer, PrivateTraining

__all__ = ["PrivacyArguments", "PrivateTrainer", "PrivateTraining", "example_losses"]
