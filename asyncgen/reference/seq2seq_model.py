"""The documented class of encoder-decoder models; the encoder can be called alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from asyncgen.cache.caches import DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.generate.prompts import decoder_start
from asyncgen.generation.outputs import BaseModelOutput, Seq2SeqLMOutput
from asyncgen.models.attention.cross import Encoded
from asyncgen.reference.compiling import is_traced, traced
from asyncgen.reference.forward_arguments import (
    IGNORED,
    call_settings,
    check_cache,
    check_mask,
    embeddings_of,
    loss_of,
)
from asyncgen.reference.pretrained_model import PreTrainedModel

if TYPE_CHECKING:
    from torch import Tensor

    from asyncgen.cache.caches import Cache
    from asyncgen.models.encoder_decoder import T5


class Encoder:
    """The encoder of a model, to be called once and its output passed on as ``encoder_outputs``."""

    def __init__(self, core: T5) -> None:
        """Share the model's weights."""
        self._core = core

    @torch.no_grad()
    def __call__(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> BaseModelOutput | tuple[Any, ...]:
        """Run the encoder.

        Args:
            input_ids: Token ids ``[B, T]``; or give ``inputs_embeds``.
            attention_mask: ``[B, T]``, zero at padding.
            inputs_embeds: Embeddings ``[B, T, E]`` instead of ids.
            output_attentions: Return attention weights.
            output_hidden_states: Return the output of every layer.
            return_dict: ``False`` for a tuple.

        Returns:
            States ``[B, T, E]`` of the last layer, and the requested outputs.

        Raises:
            InvalidRequestError: Arguments contradict each other, or have a wrong shape.
        """
        embeddings = embeddings_of(self._core, input_ids, inputs_embeds)
        mask = check_mask(attention_mask, embeddings, 0)
        states: list[Tensor] | None = [] if output_hidden_states else None
        weights: list[Tensor] | None = [] if output_attentions else None
        encoded = self._core.encode(embeddings, mask, collect=states, collect_attentions=weights)
        output = BaseModelOutput(
            last_hidden_state=encoded.states,
            hidden_states=None if states is None else tuple(states),
            attentions=None if weights is None else tuple(weights),
        )
        return output.to_tuple() if return_dict is False else output


class Seq2SeqModel(PreTrainedModel):
    """A model with an encoder and a decoder, ready to run."""

    core: T5
    has_encoder = True

    def get_encoder(self) -> Encoder:
        """Return the encoder, to be called as ``encoder(input_ids, attention_mask=…)``."""
        return Encoder(self.core)

    @torch.no_grad()
    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        encoder_outputs: Any = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        decoder_inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Seq2SeqLMOutput | tuple[Any, ...]:
        """Run encoder and decoder once.

        Args:
            input_ids: Ids that the encoder reads, ``[B, T]``; or give ``inputs_embeds`` or
                ``encoder_outputs``.
            attention_mask: ``[B, T]``, zero at padding of the encoder.
            decoder_input_ids: Ids of the decoder, ``[B, S]``; with ``labels`` alone they are made
                of these.
            decoder_attention_mask: ``[B, P + S]`` with P positions in the cache.
            encoder_outputs: Result of :meth:`get_encoder`; the encoder does not run again.
            past_key_values: `EncoderDecoderCache` to continue; it grows by S positions.
            inputs_embeds: Embeddings ``[B, T, E]`` for the encoder instead of ids.
            decoder_inputs_embeds: Embeddings ``[B, S, E]`` for the decoder instead of ids.
            labels: Ids ``[B, S]`` for the loss, compared position by position; -100 is ignored.
            use_cache: Return a cache, a new one if none was given; the default is yes.
            output_attentions: Return attention weights; disables the fast kernels.
            output_hidden_states: Return the output of every layer.
            return_dict: ``False`` for a tuple.

        Returns:
            Logits ``[B, S, V]``, the cache, the encoder's output, and the requested outputs.

        Raises:
            InvalidRequestError: Arguments contradict each other, or have a wrong shape.
        """
        if is_traced():
            # A compiler adds names with underscores to them.
            given = {name: value for name, value in locals().items() if name[0] != "_"}
            return traced(given.pop("self"), given)
        use_cache, output_attentions, output_hidden_states, return_dict = call_settings(
            self.config, use_cache, output_attentions, output_hidden_states, return_dict
        )
        if encoder_outputs is None:
            encoder_outputs = self.get_encoder()(
                input_ids,
                attention_mask,
                inputs_embeds,
                output_attentions=output_attentions,
                output_hidden_states=output_hidden_states,
                return_dict=True,
            )
        encoded = _encoded(encoder_outputs)
        encoded.mask = None if attention_mask is None else attention_mask.to(self.device) != 0
        if decoder_input_ids is None and decoder_inputs_embeds is None and labels is not None:
            decoder_input_ids = self._shifted(labels)
        embeddings = embeddings_of(
            self.core, decoder_input_ids, decoder_inputs_embeds, prefix="decoder_"
        )
        past = _check_pair(past_key_values)
        start = past.get_seq_length()
        mask = check_mask(decoder_attention_mask, embeddings, start, "decoder_attention_mask")
        states: list[Tensor] | None = [] if output_hidden_states else None
        weights: list[Tensor] | None = [] if output_attentions else None
        cross: list[Tensor] | None = [] if output_attentions else None
        attention = self.core.attention(
            past, mask, encoded, collect_attentions=weights, collect_cross_attentions=cross
        )
        positions = torch.arange(
            start, start + embeddings.shape[1], dtype=torch.int64, device=self.device
        )[None]
        hidden = self.core.hidden(embeddings, positions, attention, states)
        logits = self.core.project(hidden)
        output = Seq2SeqLMOutput(
            loss=loss_of(logits, labels, shift=0),
            logits=logits,
            past_key_values=past if use_cache else None,
            decoder_hidden_states=None if states is None else tuple(states),
            decoder_attentions=None if weights is None else tuple(weights),
            cross_attentions=None if cross is None else tuple(cross),
            encoder_last_hidden_state=encoded.states,
            encoder_hidden_states=getattr(encoder_outputs, "hidden_states", None),
            encoder_attentions=getattr(encoder_outputs, "attentions", None),
        )
        return output if return_dict else output.to_tuple()

    def _shifted(self, labels: Tensor) -> Tensor:
        """Return labels as input of the decoder: after its start token, without the last."""
        config: Any = self.generation_config
        if self.config.changes.get("decoder_start_token_id") is not None:
            config = self.config
        start = decoder_start(config, labels.shape[0], vocab_size=self.config.vocab_size)
        ids = torch.cat((start, labels[:, :-1].cpu()), dim=1)
        pad, size, filled = self.config.pad_token_id or 0, self.config.vocab_size, ids == IGNORED
        if not 0 <= pad < size and bool(filled.any()):
            allowed = f"labels of {IGNORED} become it, so it must be from 0 to {size - 1}"
            raise InvalidRequestError("pad_token_id", pad, allowed)
        return ids.masked_fill(filled, pad)


def _encoded(encoder_outputs: Any) -> Encoded:
    """Return the states of an encoder's output."""
    states = getattr(encoder_outputs, "last_hidden_state", None)
    return Encoded(cast("Tensor", encoder_outputs[0] if states is None else states))


def _check_pair(past_key_values: object) -> EncoderDecoderCache:
    past = check_cache(past_key_values)  # a new one where none was given
    if isinstance(past, EncoderDecoderCache):
        return past
    return EncoderDecoderCache(past, DynamicCache())
