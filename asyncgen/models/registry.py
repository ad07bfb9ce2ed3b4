"""Which class implements which ``model_type``: a new architecture is one more line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.models.gpt2 import GPT2
from asyncgen.models.llama import Llama
from asyncgen.models.mistral import Mistral
from asyncgen.models.qwen2 import Qwen2
from asyncgen.models.qwen3 import Qwen3
from asyncgen.models.t5 import T5

if TYPE_CHECKING:
    from asyncgen.models.decoder import DecoderLM

__all__ = ["MODELS"]

MODELS: dict[str, type[DecoderLM]] = {
    model.model_type: model for model in (Llama, Mistral, Qwen2, Qwen3, GPT2, T5)
}
