"""Lays a request out for a strategy: tensors, cache, and the objects built from the config.

The one place where plans, processors and criteria are made, for ``model.generate`` and for the
engine alike.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from asyncgen.cache.caches import Cache, DynamicCache
from asyncgen.cache.encoder_decoder import EncoderDecoderCache
from asyncgen.cache.no_cache import NoCache
from asyncgen.cache.offloaded import OffloadedCache
from asyncgen.cache.quantized.quantized_cache import QuantizedCache, check_model
from asyncgen.cache.quantized.settings import read_settings
from asyncgen.cache.sliding import HybridCache, SlidingWindowCache
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError
from asyncgen.families.plans.state_plan import keeps_states
from asyncgen.generation.config.modes import uses_beams
from asyncgen.generation.config.parameters import GROWING_CACHES, STATIC_CACHES
from asyncgen.generation.logits.base import Guidance
from asyncgen.generation.logits.build import build_logits_processors, eos_ids
from asyncgen.generation.strategies.step import Plan

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

    from asyncgen.families.config import ModelConfig
    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits.base import LogitsProcessorList
    from asyncgen.generation.stopping.stop_checks import StopChecks
    from asyncgen.generation.strategies.step import Decoder, EncoderInput, PromptInputs


_STATIC: dict[str, type[StaticCache]] = {
    "static": StaticCache,
    "sliding_window": SlidingWindowCache,
    "hybrid": HybridCache,
    "hybrid_chunked": HybridCache,
}
"""Caches of fixed shape by name; ``offloaded_`` may stand before it."""


class GenerativeModel(Protocol):
    """Model as generation sees it."""

    generation_config: GenerationConfig

    @property
    def config(self) -> ModelConfig:
        """Configuration of its file."""

    @property
    def core(self) -> Decoder:
        """The module that computes."""

    @property
    def device(self) -> torch.device:
        """Device that computes."""

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of its computation."""


def make_plan(
    model: GenerativeModel,
    input_ids: Tensor | Sequence[Sequence[int]],
    *,
    config: GenerationConfig,
    stop_checks: StopChecks,
    attention_mask: Tensor | None = None,
    cache: Cache | None = None,
    encoder: EncoderInput | None = None,
    beams: int = 1,
    **given: Any,
) -> Plan:
    """Lay rows out for a strategy.

    Args:
        model: The model that will run.
        input_ids: Prompts of one length, left-padded, int64 ``[B, S]``; as many copies of each as
            `rows_per_prompt` tells.
        config: Complete configuration.
        stop_checks: Decides when a row ends.
        attention_mask: ``[B, S]``, zero or ``False`` at padding; ``None`` where nothing is padded.
        cache: A cache to continue; ``None`` makes one.
        encoder: What the encoder reads, in a model that has one.
        beams: Beams of each row; 1 where it has none.
        **given: Further attributes of `Plan`: ``processors``, ``draw`` and those with a default.

    Returns:
        The plan; nothing has been computed yet.
    """
    ids = torch.as_tensor(input_ids, dtype=torch.int64, device=model.device)
    mask = None if attention_mask is None else attention_mask.to(model.device).bool()
    if cache is None:
        inputs: PromptInputs | None = given.get("inputs")
        length = stop_checks.max_length
        if length is not None and inputs is not None:
            length += inputs.offset
        cache = make_cache(model, config, len(ids) * beams, length, encoder)
    elif encoder is not None and not isinstance(cache, EncoderDecoderCache):
        cache = EncoderDecoderCache(cache, DynamicCache())
    if isinstance(cache, QuantizedCache) and not cache.get_seq_length():
        cache.check_prompt(len(ids) * beams, ids.shape[1], model.core.config)
    return Plan(
        core=model.core,
        input_ids=ids,
        attention_mask=mask,
        cache=cache,
        config=config,
        stop_checks=stop_checks,
        pad_token_id=pad_id(config),
        encoder=encoder,
        copies=1 if beams == 1 else config.num_return_sequences or 1,
        **given,
    )


def make_processors(
    model: GenerativeModel, config: GenerationConfig, *, prompt_length: int, **given: Any
) -> LogitsProcessorList:
    """Make the logits processors of a request, built-in and the user's, in the documented order.

    Args:
        model: The model that will run.
        config: Complete configuration.
        prompt_length: Of the decoder, padding included.
        **given: Further arguments of `build_logits_processors`.
    """
    eos, device = eos_ids(config), model.device
    return build_logits_processors(
        config,
        prompt_length=prompt_length,
        eos_token_ids=torch.tensor(eos, dtype=torch.int64, device=device) if eos else None,
        device=device,
        vocab_size=model.config.vocab_size,
        **given,
    )


def make_guidance(
    model: GenerativeModel, ids: Tensor | None, attention_mask: Tensor | None
) -> Guidance | None:
    """Return the model calls for classifier-free guidance; ``None`` for a model that has an encoder
    or cannot be called.

    Args:
        model: The model that will run.
        ids: What guidance leads away from, int64 ``[1 or B, S]``.
        attention_mask: Zero at padding, of the same shape.
    """
    if not callable(model) or getattr(model.config, "is_encoder_decoder", False):
        return None
    return Guidance(model, ids, attention_mask)


def rows_per_prompt(config: GenerationConfig) -> int:
    """Return the rows of a plan for each prompt: one per returned sequence, but one for all
    beams.
    """
    return 1 if uses_beams(config) else config.num_return_sequences or 1


def make_cache(
    model: GenerativeModel,
    config: GenerationConfig,
    batch: int,
    max_length: int | None,
    encoder: EncoderInput | None = None,
) -> Cache:
    """Make the cache that ``cache_implementation`` names, or a pair of them with an encoder.

    With ``use_cache=False`` it is what stands in the place of a cache.

    Args:
        model: The model that will run.
        config: Names the cache.
        batch: Rows.
        max_length: Positions of a static cache that are needed; it may ask for more.
        encoder: What the encoder reads, in a model that has one.

    Raises:
        InvalidRequestError: An implementation that the model cannot use, or that does not exist;
            or settings that are none of it.
    """
    check_cache(model, config)
    if config.use_cache is False:
        return NoCache()
    if encoder is not None:
        own = make_cache(model, config, batch, max_length)
        return EncoderDecoderCache(own, make_cache(model, config, batch, encoder.shape[1]))
    name = config.cache_implementation
    if name in (None, "dynamic", "dynamic_full"):
        return DynamicCache(config=getattr(model, "cache_config", None))
    if name == "offloaded":
        return OffloadedCache()
    if name == "quantized":
        return QuantizedCache(read_settings(config.cache_config), model.core.config)
    if max_length is not None and config.max_cache_len is not None:
        max_length = max(max_length, config.max_cache_len)
    kind = _STATIC[name.removeprefix("offloaded_")]
    return kind(
        model.core.config,
        max_batch_size=batch,
        max_cache_len=max_length,
        device=model.device,
        dtype=model.dtype,
        offloading=name.startswith("offloaded_"),
    )


def _has_keys(config: object) -> bool:
    """Return whether any layer attends; True for a foreign model, whose layers are not known."""
    return not keeps_states(config) or bool(getattr(config, "attending", ()))


def check_cache(model: GenerativeModel, config: GenerationConfig) -> None:
    """Refuse a ``cache_implementation`` that the model cannot use, and settings that are wrong.

    Args:
        model: Knows which of its layers have a window.
        config: Names the cache.

    Raises:
        InvalidRequestError: Names the field or the setting, and the value.
    """
    name, own = config.cache_implementation, model.core.config
    if not _has_keys(own) and name not in (None, "dynamic", "dynamic_full"):
        allowed = "the layers of this model keep states, and no keys and values; leave it out"
        raise InvalidRequestError("cache_implementation", name, allowed)
    if name == "quantized":
        check_model(model.config)
        read_settings(config.cache_config)
    elif config.cache_config:
        allowed = 'has the settings of a quantised cache; set `cache_implementation="quantized"`'
        raise InvalidRequestError("cache_config", config.cache_config, allowed)
    if name == "sliding_window" and None in map(own.window, range(own.num_hidden_layers)):
        raise InvalidRequestError(
            "cache_implementation",
            name,
            "needs a model with a sliding window in every layer; use `static` or `hybrid`",
        )
    known = (None, *GROWING_CACHES, *STATIC_CACHES, "quantized", "dynamic_full")
    if name not in known:
        allowed = f"one of {', '.join((*GROWING_CACHES, *STATIC_CACHES, 'quantized'))}"
        raise InvalidRequestError("cache_implementation", name, allowed)


def pad_id(config: GenerationConfig) -> int:
    """Return the id that fills ended rows: the padding id, else the first end-of-sequence id."""
    if config.pad_token_id is not None:
        return int(config.pad_token_id)
    return next(iter(eos_ids(config)), 0)
