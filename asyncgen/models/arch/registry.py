"""Which class implements which ``model_type``: a new architecture is one more line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.models.arch.gpt2 import GPT2
from asyncgen.models.arch.llama import Llama
from asyncgen.models.arch.mistral import Mistral
from asyncgen.models.arch.qwen2 import Qwen2
from asyncgen.models.arch.qwen3 import Qwen3
from asyncgen.models.arch.t5 import T5

if TYPE_CHECKING:
    from asyncgen.models.decoder import DecoderLM


MODELS: dict[str, type[DecoderLM]] = {
    model.model_type: model for model in (Llama, Mistral, Qwen2, Qwen3, GPT2, T5)
}
