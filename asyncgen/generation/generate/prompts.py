"""Prepare the prompts of ``generate``: ids and masks of the decoder, and of the encoder.

Keeps the reference's rules: what a missing attention mask means, and which token a decoder begins
with.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.generation.generate.inputs import (
    check_embeddings,
    first_position,
    prompt_inputs,
    read_embeddings,
)
from asyncgen.generation.logits.build import eos_ids
from asyncgen.generation.strategies.step import EncoderInput, PromptInputs
from asyncgen.models.attention.cross import Encoded

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.generate.plan_parts import GenerativeModel


_log = logging.getLogger("asyncgen.generation")


@dataclass(slots=True)
class DecoderPrompt:
    """Ids that the decoder continues.

    Attributes:
        input_ids: Int64 ``[B, S]``.
        attention_mask: ``[B, S]``, zero at padding; ``None`` where nothing is padded.
        encoder: What the encoder reads, in a model that has one.
        inputs: What else was said of the prompts.
    """

    input_ids: Tensor
    attention_mask: Tensor | None
    encoder: EncoderInput | None = None
    inputs: PromptInputs | None = None


def read_prompt(
    model: GenerativeModel,
    inputs: Tensor | None,
    given: Mapping[str, Any],
    config: GenerationConfig,
    past: int = 0,
) -> DecoderPrompt:
    """Read the arguments that say what to continue.

    Args:
        model: Knows whether it has an encoder.
        inputs: Prompt ids ``[B, S]``, the encoder's where there is one, or ``None``.
        given: ``input_ids``, ``attention_mask``, ``inputs_embeds``, ``position_ids``,
            ``token_type_ids``, ``cache_position``, ``logits_to_keep``; with an encoder the first
            three, ``encoder_outputs``, ``decoder_input_ids`` and ``decoder_attention_mask``.
        config: For special tokens.
        past: Positions in the cache that is continued.

    Raises:
        ValueError: Arguments are missing, contradict each other, or have the wrong shape.
    """
    stated = given.get("input_ids")
    if inputs is not None and stated is not None:
        raise ValueError("`inputs` and `input_ids` were passed together; give one of them")
    ids = inputs if inputs is not None else stated
    if model.config.is_encoder_decoder:
        return _read_encoder(model, ids, given, config, past)
    mask, embeddings = given.get("attention_mask"), read_embeddings(model, given)
    if embeddings is not None and ids is None:
        ids = torch.empty(len(embeddings), 0, dtype=torch.int64, device=model.device)
    else:
        ids = _check_ids(model, "input_ids", _bos(model, config) if ids is None else ids)
    if embeddings is None:
        offset = first_position("attention_mask", mask, ids, past)
    else:
        check_embeddings(ids, embeddings, given, past)
        offset = embeddings.shape[1] - ids.shape[1]
    others = prompt_inputs(model, ids, given, offset=offset, past=past, embeddings=embeddings)
    return DecoderPrompt(ids, _decoder_mask(ids, mask, config, offset), inputs=others)


def decoder_start(
    config: GenerationConfig,
    batch: int,
    device: torch.device | str = "cpu",
    *,
    vocab_size: int | None = None,
) -> Tensor:
    """The first decoder token of each row, int64 ``[B, 1]``; below ``vocab_size`` if it is given.

    Raises:
        ValueError: There is none, or there are not as many as rows.
        InvalidRequestError: The model has no such token.
    """
    name = "bos_token_id" if config.decoder_start_token_id is None else "decoder_start_token_id"
    start: int | Sequence[int] | None = getattr(config, name)
    if start is None:
        raise ValueError(
            "`decoder_start_token_id` or `bos_token_id` has to be defined for encoder-decoder "
            "generation"
        )
    if isinstance(start, int):
        start = [start] * batch
    if len(start) != batch:
        raise ValueError(
            f"`decoder_start_token_id` expected to have length {batch} but got {len(start)}"
        )
    if vocab_size is not None:
        _check_begin(name, start, vocab_size)
    return torch.tensor(start, dtype=torch.int64, device=device)[:, None]


def _read_encoder(
    model: GenerativeModel,
    ids: Tensor | None,
    given: Mapping[str, Any],
    config: GenerationConfig,
    past: int,
) -> DecoderPrompt:
    """The prompt of a model with two stacks."""
    outputs, embeddings = given.get("encoder_outputs"), read_embeddings(model, given)
    encoded = None if outputs is None else _encoded(model, outputs)
    if embeddings is not None and ids is not None:
        raise ValueError("`inputs_embeds` and `input_ids` were passed together; give one of them")
    if ids is None and encoded is None and embeddings is None:
        ids = _bos(model, config)
    if ids is not None:
        ids = _check_ids(model, "input_ids", ids)
    # Unlike a decoder's, an encoder's mask is not inferred from padding ids.
    shape = EncoderInput(ids, None, encoded, embeddings).shape
    mask = _unless_all_visible(_check_mask("attention_mask", given.get("attention_mask"), shape))
    seen = None if mask is None else mask.to(model.device) != 0
    if encoded is not None:
        encoded.mask = seen
    encoder = EncoderInput(ids, seen, encoded, embeddings)
    batch, _ = shape
    start = decoder_start(config, batch, model.device, vocab_size=model.config.vocab_size)
    decoder_mask = given.get("decoder_attention_mask")
    decoder_ids = given.get("decoder_input_ids")
    name = "decoder_attention_mask"
    if decoder_ids is None:
        first_position(name, None, start, past)
        decoder_mask = _check_mask(name, decoder_mask, (batch, 1))
        return DecoderPrompt(start, decoder_mask, encoder)
    decoder_ids = _check_ids(model, "decoder_input_ids", decoder_ids)
    if decoder_ids.shape[0] != batch:
        raise InvalidRequestError(
            "decoder_input_ids", tuple(decoder_ids.shape), f"the encoder has {batch} rows"
        )
    offset = first_position(name, decoder_mask, decoder_ids, past)
    decoder_mask = _check_mask(name, decoder_mask, (batch, offset + decoder_ids.shape[1]))
    if bool((decoder_ids[:, :1] != start).all()):
        decoder_ids = torch.cat((start, decoder_ids), dim=1)
        if decoder_mask is not None:
            decoder_mask = torch.nn.functional.pad(decoder_mask, (1, 0), value=1)
    inputs = PromptInputs(offset) if offset else None
    return DecoderPrompt(decoder_ids, _unless_all_visible(decoder_mask), encoder, inputs)


def _encoded(model: GenerativeModel, outputs: Any) -> Encoded:
    """Return the encoder's states from the caller's output object, tuple or tensor."""
    states = getattr(outputs, "last_hidden_state", outputs)
    if isinstance(states, tuple | list) and states:
        states = states[0]
    if not isinstance(states, torch.Tensor) or states.dim() != 3:
        raise InvalidRequestError(
            "encoder_outputs", type(outputs).__name__, "give what `model.get_encoder()` returns"
        )
    width = model.config.hidden_size
    if states.shape[2] != width:
        shape = tuple(states.shape)
        raise InvalidRequestError("encoder_outputs", shape, f"states are [B, T, {width}]")
    return Encoded(states.to(model.device, model.dtype))


def _check_begin(name: str, ids: Sequence[int], vocab_size: int) -> None:
    """Refuse the first tokens of a sequence that a file names and the model does not have."""
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            allowed = f"a sequence begins with it, so it must be from 0 to {vocab_size - 1}"
            raise InvalidRequestError(name, token_id, allowed)


def _bos(model: GenerativeModel, config: GenerationConfig) -> Tensor:
    """A lone beginning-of-sequence token."""
    if config.bos_token_id is None:
        raise ValueError("`bos_token_id` has to be defined when no `input_ids` are provided")
    _check_begin("bos_token_id", [config.bos_token_id], model.config.vocab_size)
    return torch.full((1, 1), config.bos_token_id, dtype=torch.int64, device="cpu")


def _check_ids(model: GenerativeModel, name: str, ids: Tensor) -> Tensor:
    if not isinstance(ids, torch.Tensor):
        raise InvalidRequestError(name, type(ids).__name__, "give a tensor of ids, [B, S]")
    if ids.dim() != 2 or 0 in ids.shape or ids.is_floating_point():
        raise InvalidRequestError(
            name,
            InWords(f"{tuple(ids.shape)} {ids.dtype}"),
            "integer ids of shape [batch, length] with at least one row and one position",
        )
    size = model.config.vocab_size
    if int(ids.min()) < 0 or int(ids.max()) >= size:
        found = [int(ids.min()), int(ids.max())]
        raise InvalidRequestError(name, found, f"ids outside of 0 to {size - 1} have no embedding")
    return ids.to(device=model.device, dtype=torch.int64)


def _check_mask(name: str, mask: Tensor | None, shape: tuple[int, ...]) -> Tensor | None:
    if mask is None:
        return None
    if not isinstance(mask, torch.Tensor):
        raise InvalidRequestError(name, type(mask).__name__, f"give a tensor of shape {[*shape]}")
    if tuple(mask.shape) != shape:
        raise InvalidRequestError(
            name, tuple(mask.shape), f"its shape must be {[*shape]}, a number for each id"
        )
    return mask


def _unless_all_visible(mask: Tensor | None) -> Tensor | None:
    """The mask, or ``None`` where it hides nothing."""
    return None if mask is None or bool((mask != 0).all()) else mask


def _decoder_mask(
    input_ids: Tensor, mask: Tensor | None, config: GenerationConfig, offset: int
) -> Tensor | None:
    """The mask as given, or inferred from padding ids that are not also an end of sequence.

    ``None`` where nothing is padded.
    """
    batch, length = input_ids.shape
    found = _check_mask("attention_mask", mask, (batch, offset + length))
    pad = config.pad_token_id
    if found is None:
        if pad is None or pad in eos_ids(config) or not bool((input_ids == pad).any()):
            return None
        found = input_ids != pad
    found = _unless_all_visible(found)
    if found is not None and bool((found[:, -1] == 0).any()):
        _log.warning(
            "some rows end with padding, so their texts are continued from it; pad on the left: "
            '`tokenizer.padding_side = "left"`'
        )
    return found
