"""Keep what requests need of a loaded model; computed once, when the engine is made."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from asyncgen.text.tool_calls.format_detection import NO_FORMATS

if TYPE_CHECKING:
    import torch

    from asyncgen.engine.kv_cache.block_pool import CacheSize
    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.text.tool_calls.format_detection import ChatFormats


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A loaded model with its tokenizer, and the facts that hold for each of its requests.

    Attributes:
        model: The loaded model; one without ``core`` decodes by itself.
        tokenizer: Its tokenizer; ``None`` where prompts are ids and no text is wanted.
        room: Memory for keys and values; ``None`` where it is not planned.
        fingerprint: Of the engine; ``None`` where no tokens can be promised.
        formats: Formats in which the model writes calls and reasoning.
        is_ours: True for a model of this library.
        has_encoder: True for a model of this library with an encoder.
        is_packed: True if the shared batch can run the model.
        is_bidirectional: True if its tokens see later ones, so that it generates none.
        vocab_size: Tokens of the vocabulary.
        context_length: Most positions; ``None`` for no limit.
        device: Device of a model of this library; ``None`` for another.
    """

    model: Any
    tokenizer: Tokenizer | None
    room: CacheSize | None
    fingerprint: str | None
    formats: ChatFormats
    is_ours: bool
    has_encoder: bool
    is_packed: bool
    is_bidirectional: bool
    vocab_size: int
    context_length: int | None
    device: torch.device | None

    @classmethod
    def of(
        cls,
        model: Any,
        tokenizer: Tokenizer | None,
        room: CacheSize | None = None,
        *,
        fingerprint: str | None = None,
        formats: ChatFormats = NO_FORMATS,
    ) -> Self:
        """Read the facts of a loaded model."""
        core = getattr(model, "core", None)
        is_ours = hasattr(model, "core")
        has_encoder = is_ours and bool(model.config.is_encoder_decoder)
        return cls(
            model=model,
            tokenizer=tokenizer,
            room=room,
            fingerprint=fingerprint,
            formats=formats,
            is_ours=is_ours,
            has_encoder=has_encoder,
            is_packed=callable(getattr(core, "decode_packed", None)) and not has_encoder,
            is_bidirectional=getattr(getattr(core, "config", None), "is_bidirectional", False),
            vocab_size=getattr(getattr(model, "config", None), "vocab_size", 0),
            context_length=getattr(getattr(model, "config", None), "max_position_embeddings", None),
            device=model.device if is_ours else None,
        )
