"""Check the inputs beside a prompt's ids: embeddings, positions, token types, a past cache.

The reference's rules: ids that follow a cache are told from a whole prompt by the length of the
mask, and embeddings stand for the prompt while the ids beside them are only what was written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from asyncgen.cache.caches import Cache
from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.generation.strategies.step import PromptInputs
from asyncgen.models.embeddings import refuse_embeddings

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.generate.plan_parts import GenerativeModel


def read_past(past: object, config: GenerationConfig) -> Cache | None:
    """Look at a cache that the caller wants to continue.

    Args:
        past: The argument ``past_key_values``.
        config: May ask for a cache to be made, or for none.

    Raises:
        InvalidRequestError: It is no cache, or the configuration asks for another one.
    """
    if past is None:
        return None
    if not isinstance(past, Cache):
        raise InvalidRequestError(
            "past_key_values",
            type(past).__name__,
            "give a cache, such as `DynamicCache()`; tuples go through "
            "`DynamicCache.from_legacy_cache`",
        )
    if config.cache_implementation is not None:
        raise InvalidRequestError(
            "cache_implementation",
            config.cache_implementation,
            "names a cache to make, but `past_key_values` is one; give only one of them",
        )
    if config.use_cache is False:
        allowed = "nothing is cached, but `past_key_values` is a cache; leave one of them out"
        raise InvalidRequestError("use_cache", False, allowed)
    return past


def first_position(name: str, mask: object, ids: Tensor, past: int) -> int:
    """Position of the first of the ids ``[B, S]``: 0, or behind the P positions of a cache.

    Args:
        name: The mask's.
        mask: ``[B, S]`` where the ids are all there are, ``[B, P + S]`` where they follow the
            cache; ``None`` is the former.
        ids: The ids.
        past: Positions in the cache, P.

    Raises:
        InvalidRequestError: Cache, ids and mask do not fit together.
    """
    batch, length = ids.shape
    if past and isinstance(mask, torch.Tensor):
        if tuple(mask.shape) == (batch, past + length):
            return past
        if tuple(mask.shape) != (batch, length):
            raise InvalidRequestError(
                name,
                tuple(mask.shape),
                f"its shape must be {[batch, length]} where the ids are the whole text, or "
                f"{[batch, past + length]} where they follow the {past} positions of "
                "`past_key_values`",
            )
    if past >= length and past:
        raise InvalidRequestError(
            "past_key_values",
            InWords(f"a cache of {past} positions"),
            f"the prompt has {length}, of which it must lack at least the last; pass all tokens "
            f"so far, or those that follow the cache with `{name}` [{batch}, {past + length}] over "
            "both, or `crop` the cache",
        )
    return 0


def read_embeddings(model: GenerativeModel, given: Mapping[str, Any]) -> Tensor | None:
    """The argument ``inputs_embeds``, ``[B, S, E]``, where and as the model computes.

    Raises:
        InvalidRequestError: It is something else.
    """
    found = given.get("inputs_embeds")
    if found is None:
        return None
    refuse_embeddings(model.core, "inputs_embeds", found)
    width = model.config.hidden_size
    allowed = f"give a tensor of floats, [B, S, {width}]"
    if not isinstance(found, torch.Tensor):
        raise InvalidRequestError("inputs_embeds", type(found).__name__, allowed)
    fits = found.dim() == 3 and found.shape[2] == width and 0 not in found.shape
    if not fits or not found.is_floating_point():
        value = f"{tuple(found.shape)} {found.dtype}"
        raise InvalidRequestError("inputs_embeds", value, allowed)
    return found.detach().to(model.device, model.dtype)


def check_embeddings(ids: Tensor, embeddings: Tensor, given: Mapping[str, Any], past: int) -> None:
    """See whether ids ``[B, L]``, mask and cache go with embeddings ``[B, S, E]``.

    Raises:
        InvalidRequestError: They do not.
    """
    batch, length, _ = embeddings.shape
    if len(ids) != batch:
        allowed = f"`inputs_embeds` has {batch} rows; give as many"
        raise InvalidRequestError("input_ids", tuple(ids.shape), allowed)
    if given.get("attention_mask") is None and ids.shape[1] not in (0, length):
        raise InvalidRequestError(
            "input_ids",
            tuple(ids.shape),
            f"`inputs_embeds` has {length} positions; give as many ids, or none, or an "
            f"`attention_mask` [{batch}, {length}]",
        )
    if past >= length:
        raise InvalidRequestError(
            "past_key_values",
            InWords(f"a cache of {past} positions"),
            f"`inputs_embeds` has {length}, of which it must lack at least the last; pass the "
            "embeddings of all tokens so far, or `crop` the cache",
        )


def prompt_inputs(
    model: GenerativeModel,
    ids: Tensor,
    given: Mapping[str, Any],
    *,
    offset: int,
    past: int,
    embeddings: Tensor | None = None,
) -> PromptInputs | None:
    """Return the inputs beside the ids of the prompts; ``None`` if there are none.

    Args:
        model: Knows how many positions and types there are.
        ids: Int64 ``[B, L]``.
        given: ``position_ids``, ``token_type_ids``, ``cache_position`` and ``logits_to_keep``.
        offset: Position of the first id.
        past: Positions in the cache.
        embeddings: What is read in the place of the ids.

    Raises:
        InvalidRequestError: One of these does not fit the prompt, or the model.
    """
    total = offset + ids.shape[1]
    _check_cache_position(given.get("cache_position"), past, total)
    _check_logits_to_keep(given.get("logits_to_keep"))
    limit = model.core.config.position_limit
    spans = (len(ids), total - past, total)
    positions = _read_per_position("position_ids", given.get("position_ids"), spans, limit, model)
    size = model.config.vocab_size
    types = _read_per_position("token_type_ids", given.get("token_type_ids"), spans, size, model)
    if not offset and embeddings is None and positions is None and types is None:
        return None
    return PromptInputs(offset, embeddings, positions, types)


def _read_per_position(
    name: str,
    given: object,
    spans: tuple[int, int, int],
    limit: int | None,
    model: GenerativeModel,
) -> Tensor | None:
    """Numbers of each position that is read, or of those in the cache as well: ``[B, n]``."""
    if given is None:
        return None
    batch, fresh, total = spans
    shapes = " or ".join(f"[{batch}, {n}]" for n in sorted({fresh, total}))
    allowed = f"integers of shape {shapes}: positions to read, those in a cache included or not"
    if not isinstance(given, torch.Tensor):
        raise InvalidRequestError(name, type(given).__name__, allowed)
    table = given[None] if given.dim() == 1 else given
    fits = table.dim() == 2 and table.shape[0] in (1, batch) and table.shape[1] in (fresh, total)
    if not fits or given.is_floating_point():
        raise InvalidRequestError(name, InWords(f"{tuple(given.shape)} {given.dtype}"), allowed)
    least, most = int(table.min()), int(table.max())
    if least < 0 or (limit is not None and most >= limit):
        end = "up" if limit is None else f"to {limit - 1}"
        raise InvalidRequestError(name, [least, most], f"numbers go from 0 {end}")
    return table.to(model.device, torch.int64).expand(batch, -1)


def _check_cache_position(given: object, past: int, total: int) -> None:
    if given is None:
        return
    found = given.tolist() if isinstance(given, torch.Tensor) else given
    if found != [*range(past, total)]:
        allowed = f"what is read lies at {past} to {total - 1}; leave it out"
        raise InvalidRequestError("cache_position", found, allowed)


def _check_logits_to_keep(given: object) -> None:
    if given is not None and (isinstance(given, bool) or not isinstance(given, int) or given < 0):
        allowed = "a number of positions, 0 for all; the last one is what generation reads"
        raise InvalidRequestError("logits_to_keep", given, allowed)
