"""Define the outputs of `generate` and of a forward pass: objects that are also tuple and dict.

Plain data; knows nothing of how it was made. Attributes that are None do not exist in the tuple
and dict views.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor


class ModelOutput(Mapping[str, Any]):
    """Base of all outputs; subclasses are dataclasses with ``eq=False``.

    ``output.logits``, ``output["logits"]``, ``output[0]`` and ``output[:2]`` all work. By name,
    position or iteration only attributes that are not None are there. Iterating gives names, as
    a dict does; `to_tuple` gives values.
    """

    def __getitem__(self, key: str | int | slice) -> Any:
        """Look up by name, or by position among what is not None.

        Raises:
            KeyError: There is no such name, or it is None.
            IndexError: There are not that many values.
        """
        if isinstance(key, str):
            if key not in self.keys():
                raise KeyError(key)
            return getattr(self, key)
        return self.to_tuple()[key]

    def __setitem__(self, key: str, value: Any) -> None:
        """Set an attribute by name."""
        setattr(self, key, value)

    def __contains__(self, key: object) -> bool:
        """Tell whether the attribute exists and is not None."""
        return key in list(self)

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names of what is not None."""
        for field in fields(self):  # type: ignore[arg-type]
            if getattr(self, field.name) is not None:
                yield field.name

    def __len__(self) -> int:
        """Count what is not None."""
        return sum(1 for _ in self)

    def keys(self) -> Any:
        """Return the names of what is not None, in order."""
        return dict.fromkeys(self).keys()

    def to_tuple(self) -> tuple[Any, ...]:
        """Return the values that are not None, in order."""
        return tuple(getattr(self, name) for name in self)


@dataclass(eq=False)
class BaseModelOutput(ModelOutput):
    """Output of an encoder.

    Attributes:
        last_hidden_state: Output of the last layer, [B, T, E].
        hidden_states: Per layer, the embeddings first, [B, T, E].
        attentions: Per layer, attention weights, [B, H, T, T].
    """

    last_hidden_state: Tensor | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class Seq2SeqLMOutput(ModelOutput):
    """Output of a language model with an encoder and a decoder.

    Attributes:
        loss: Language modelling loss, a scalar, when labels were given.
        logits: Scores of the next token, [B, S, V].
        past_key_values: The cache.
        decoder_hidden_states: Per layer, the embeddings first, [B, S, E].
        decoder_attentions: Per layer, [B, H, S, T].
        cross_attentions: Per layer, weights to the encoder, [B, H, S, T].
        encoder_last_hidden_state: Output of the encoder, [B, T, E].
        encoder_hidden_states: Per layer, [B, T, E].
        encoder_attentions: Per layer, [B, H, T, T].
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Any = None
    decoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[Tensor, ...] | None = None
    cross_attentions: tuple[Tensor, ...] | None = None
    encoder_last_hidden_state: Tensor | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class CausalLMOutputWithPast(ModelOutput):
    """Output of a causal language model.

    Attributes:
        loss: Language modelling loss, a scalar, when labels were given.
        logits: Scores of the next token, [B, S, V].
        past_key_values: The cache.
        hidden_states: Per layer, the embeddings first, [B, S, E].
        attentions: Per layer, attention weights, [B, H, S, T].
    """

    loss: Tensor | None = None
    logits: Tensor | None = None
    past_key_values: Any = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None


@dataclass(eq=False)
class GenerateDecoderOnlyOutput(ModelOutput):
    """Result of a decoder-only model without beams.

    Attributes:
        sequences: Prompt and generated token ids, [B, T], padded after the end.
        scores: Per step, processed scores, [B, V].
        logits: Per step, unprocessed logits, [B, V].
        attentions: Per step and layer, [B, H, S, T].
        hidden_states: Per step and layer, [B, S, E].
        past_key_values: The cache, when one was used.
    """

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    attentions: tuple[tuple[Tensor, ...], ...] | None = None
    hidden_states: tuple[tuple[Tensor, ...], ...] | None = None
    past_key_values: Any = None


@dataclass(eq=False)
class GenerateEncoderDecoderOutput(ModelOutput):
    """Result of an encoder-decoder model without beams.

    Attributes:
        sequences: Generated token ids, [B, T].
        scores: Per step, processed scores, [B, V].
        logits: Per step, unprocessed logits, [B, V].
        encoder_attentions: Per layer, [B, H, T, T].
        encoder_hidden_states: Per layer, [B, T, E].
        decoder_attentions: Per step and layer, [B, H, S, T].
        cross_attentions: Per step and layer, [B, H, S, T].
        decoder_hidden_states: Per step and layer, [B, S, E].
        past_key_values: The cache, when one was used.
    """

    sequences: Tensor
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[tuple[Tensor, ...], ...] | None = None
    cross_attentions: tuple[tuple[Tensor, ...], ...] | None = None
    decoder_hidden_states: tuple[tuple[Tensor, ...], ...] | None = None
    past_key_values: Any = None


@dataclass(eq=False)
class GenerateBeamDecoderOnlyOutput(ModelOutput):
    """Result of a decoder-only model with beams.

    Attributes:
        sequences: Prompt and generated token ids, [B * num_return_sequences, T].
        sequences_scores: Final beam scores, [B * num_return_sequences].
        scores: Per step, beam transition scores, [B * num_beams, V].
        logits: Per step, unprocessed logits, [B * num_beams, V].
        beam_indices: The beam of each generated token, [B * num_return_sequences, T].
        attentions: Per step and layer, [B * num_beams, H, S, T].
        hidden_states: Per step and layer, [B * num_beams, S, E].
        past_key_values: The cache, when one was used.
    """

    sequences: Tensor
    sequences_scores: Tensor | None = None
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    beam_indices: Tensor | None = None
    attentions: tuple[tuple[Tensor, ...], ...] | None = None
    hidden_states: tuple[tuple[Tensor, ...], ...] | None = None
    past_key_values: Any = None


@dataclass(eq=False)
class GenerateBeamEncoderDecoderOutput(ModelOutput):
    """Result of an encoder-decoder model with beams.

    Attributes:
        sequences: Generated token ids, [B * num_return_sequences, T].
        sequences_scores: Final beam scores, [B * num_return_sequences].
        scores: Per step, beam transition scores, [B * num_beams, V].
        logits: Per step, unprocessed logits, [B * num_beams, V].
        beam_indices: The beam of each generated token, [B * num_return_sequences, T].
        encoder_attentions: Per layer, [B, H, T, T].
        encoder_hidden_states: Per layer, [B, T, E].
        decoder_attentions: Per step and layer, [B * num_beams, H, S, T].
        cross_attentions: Per step and layer, [B * num_beams, H, S, T].
        decoder_hidden_states: Per step and layer, [B * num_beams, S, E].
        past_key_values: The cache, when one was used.
    """

    sequences: Tensor
    sequences_scores: Tensor | None = None
    scores: tuple[Tensor, ...] | None = None
    logits: tuple[Tensor, ...] | None = None
    beam_indices: Tensor | None = None
    encoder_attentions: tuple[Tensor, ...] | None = None
    encoder_hidden_states: tuple[Tensor, ...] | None = None
    decoder_attentions: tuple[tuple[Tensor, ...], ...] | None = None
    cross_attentions: tuple[tuple[Tensor, ...], ...] | None = None
    decoder_hidden_states: tuple[tuple[Tensor, ...], ...] | None = None
    past_key_values: Any = None


GenerateNonBeamOutput = GenerateDecoderOnlyOutput | GenerateEncoderDecoderOutput
GenerateBeamOutput = GenerateBeamDecoderOnlyOutput | GenerateBeamEncoderDecoderOutput
GenerateOutput = GenerateNonBeamOutput | GenerateBeamOutput
"""Any output of `generate` with ``return_dict_in_generate=True``."""
