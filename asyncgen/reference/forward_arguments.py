"""Check the arguments of a model call and convert them for the computation.

Also applies labels and `logits_to_keep` to the results.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.cache.sink import SinkCache
from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.families.config.editable_config import CALL_DEFAULTS
from asyncgen.models.attention.sink_window import enter_window
from asyncgen.models.embeddings import refuse_embeddings

if TYPE_CHECKING:
    from asyncgen.families.config.editable_config import EditableConfig
    from asyncgen.models.decoder import DecoderLM

IGNORED = -100
"""Label of a position that is ignored."""


def call_settings(config: EditableConfig, *given: bool | None) -> list[bool]:
    """Return the arguments of `CALL_DEFAULTS`, in their order, with the defaults of ``config``."""
    return [
        bool(getattr(config, name)) if value is None else bool(value)
        for name, value in zip(CALL_DEFAULTS, given, strict=True)
    ]


def embeddings_of(
    core: DecoderLM, input_ids: Tensor | None, inputs_embeds: Tensor | None, prefix: str = ""
) -> Tensor:
    """Return embeddings ``[B, S, E]`` of either input, whose names begin with ``prefix``."""
    if (input_ids is None) == (inputs_embeds is None):
        raise InvalidRequestError(
            f"{prefix}input_ids",
            None if input_ids is None else tuple(input_ids.shape),
            f"give exactly one of `{prefix}input_ids` and `{prefix}inputs_embeds`",
        )
    if inputs_embeds is not None:
        refuse_embeddings(core, f"{prefix}inputs_embeds", inputs_embeds)
        width = core.config.hidden_size
        if inputs_embeds.dim() != 3 or inputs_embeds.shape[2] != width:
            raise wrong_shape(f"{prefix}inputs_embeds", inputs_embeds, f"[B, S, {width}]")
        return inputs_embeds.to(core.device, core.dtype)
    assert input_ids is not None
    if input_ids.dim() != 2 or input_ids.is_floating_point():
        raise InvalidRequestError(
            f"{prefix}input_ids",
            InWords(f"{tuple(input_ids.shape)} {input_ids.dtype}"),
            "give integers of shape [B, S]",
        )
    ids = input_ids.to(core.device, torch.int64)
    size = core.config.vocab_size
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= size):
        raise InvalidRequestError(
            f"{prefix}input_ids", [int(ids.min()), int(ids.max())], f"ids go from 0 to {size - 1}"
        )
    return core.embed(ids)


def check_cache(past_key_values: object) -> Cache:
    """Return the cache that was given, or a new one."""
    if past_key_values is None:
        return DynamicCache()
    if not isinstance(past_key_values, Cache):
        raise InvalidRequestError(
            "past_key_values",
            type(past_key_values).__name__,
            "give a cache, such as `DynamicCache()`; tuples go through "
            "`DynamicCache.from_legacy_cache`",
        )
    return past_key_values


def place_tokens(
    core: DecoderLM,
    past: Cache,
    embeddings: Tensor,
    *,
    mask: Tensor | None,
    position_ids: Tensor | None,
    cache_position: Tensor | None,
) -> tuple[Tensor | None, Tensor]:
    """Work out the mask and the positions of new tokens behind a cache.

    Args:
        core: The module that computes.
        past: The cache; a `SinkCache` makes room for them.
        embeddings: Of the new tokens, ``[B, S, E]``.
        mask: As it was given; of a `SinkCache` the last S columns are read.
        position_ids: As they were given.
        cache_position: As it was given.

    Returns:
        A boolean mask ``[B, T]`` of all positions in the cache, if there is padding; and positions
        ``[B or 1, S]``.
    """
    batch, length, _ = embeddings.shape
    if isinstance(past, SinkCache):
        check_cache_position(cache_position, past.text_length, length)
        if position_ids is not None:
            allowed = "positions are those in the `SinkCache`; leave it out"
            raise InvalidRequestError("position_ids", tuple(position_ids.shape), allowed)
        return enter_window(core, past, _new_mask(mask, past, embeddings))
    start = past.get_seq_length()
    check_cache_position(cache_position, start, length)
    seen = check_mask(mask, embeddings, start)
    return seen, _positions(position_ids, seen, embeddings, start)


def _new_mask(given: Tensor | None, past: SinkCache, embeddings: Tensor) -> Tensor:
    """Return the mask of new tokens, bool ``[B, S]``, of one over the text or over the cache."""
    batch, length, _ = embeddings.shape
    if given is None:
        return torch.ones(batch, length, dtype=torch.bool, device=embeddings.device)
    widths = sorted({past.get_seq_length() + length, past.text_length + length})
    if given.dim() != 2 or given.shape[0] != batch or given.shape[1] not in widths:
        shapes = " or ".join(str([batch, width]) for width in widths)
        raise wrong_shape("attention_mask", given, f"{shapes}: of the cache, or of the whole text")
    return given[:, -length:].to(embeddings.device) != 0


def _positions(
    position_ids: Tensor | None, mask: Tensor | None, embeddings: Tensor, start: int
) -> Tensor:
    """Return positions ``[B or 1, S]``."""
    batch, length, _ = embeddings.shape
    if position_ids is not None:
        positions = position_ids.to(embeddings.device, torch.int64)
        positions = positions[None] if positions.dim() == 1 else positions
        if positions.shape not in ((batch, length), (1, length)):
            raise wrong_shape("position_ids", position_ids, f"[{batch}, {length}] or [1, {length}]")
        return positions
    if mask is None:
        return torch.arange(start, start + length, dtype=torch.int64, device=embeddings.device)[
            None
        ]
    counted = mask.cumsum(dim=1) - 1  # [B, P + S]
    return counted[:, start:].clamp(min=0)


def check_cache_position(cache_position: Tensor | None, start: int, length: int) -> None:
    """Refuse positions other than those after the cache."""
    if cache_position is not None and cache_position.tolist() != [*range(start, start + length)]:
        raise InvalidRequestError(
            "cache_position",
            cache_position.tolist(),
            f"tokens are appended to the cache, here at {start} to {start + length - 1}",
        )


def check_mask(
    attention_mask: Tensor | None, embeddings: Tensor, start: int, name: str = "attention_mask"
) -> Tensor | None:
    """Return a boolean mask ``[B, P + S]``."""
    if attention_mask is None:
        return None
    expected = (embeddings.shape[0], start + embeddings.shape[1])
    if attention_mask.shape != expected:
        allowed = f"{list(expected)}: rows, and positions of cache and input together"
        raise wrong_shape(name, attention_mask, allowed)
    return attention_mask.to(embeddings.device) != 0


def states_to_project(hidden: Tensor, logits_to_keep: int | Tensor) -> Tensor:
    """Return the hidden states ``[B, n, E]`` of the wanted logits."""
    if isinstance(logits_to_keep, Tensor):
        return hidden[:, logits_to_keep.to(hidden.device)]
    if isinstance(logits_to_keep, bool) or logits_to_keep < 0:
        raise InvalidRequestError(
            "logits_to_keep", logits_to_keep, "give a number of positions, 0 for all"
        )
    return hidden[:, -logits_to_keep:] if logits_to_keep else hidden


def loss_of(logits: Tensor, labels: Tensor | None, *, shift: int) -> Tensor | None:
    """Return the mean negative log-likelihood of labels by logits ``shift`` positions before."""
    if labels is None:
        return None
    if labels.shape != logits.shape[:2]:
        raise wrong_shape("labels", labels, str(list(logits.shape[:2])))
    predicted = logits[:, : logits.shape[1] - shift].float().flatten(0, 1)
    wanted = labels[:, shift:].to(logits.device).flatten()
    return F.cross_entropy(predicted, wanted, ignore_index=IGNORED)


def wrong_shape(name: str, given: Tensor, allowed: str) -> InvalidRequestError:
    """Return the error of a tensor with a wrong shape."""
    return InvalidRequestError(name, tuple(given.shape), f"its shape must be {allowed}")
