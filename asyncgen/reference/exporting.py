"""Compute the forward pass of a model while ``torch.export`` writes it down.

Values are not looked at, since there are none yet: a check of a value is what the caller of the
exported program owes. A static cache becomes part of the program, which writes to it.
"""

from __future__ import annotations

import functools
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from asyncgen import native
from asyncgen.cache.layers import StaticLayer
from asyncgen.cache.static import StaticCache
from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.families.plans.state_plan import keeps_states
from asyncgen.generation.outputs import CausalLMOutputWithPast
from asyncgen.models.attention.exported import ExportedAttention
from asyncgen.reference.forward_arguments import call_settings, states_to_project
from asyncgen.runtime.beside import call_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from torch import Tensor

_TAKEN = {
    "input_ids",
    "inputs_embeds",
    "attention_mask",
    "position_ids",
    "past_key_values",
    "cache_position",
    "logits_to_keep",
    "use_cache",
    "return_dict",
}


def exported_forward(model: Any, given: Mapping[str, Any]) -> Any:
    """Compute the forward pass of a model that is being exported.

    Args:
        model: A model without an encoder.
        given: Arguments of its ``forward`` by name.

    Returns:
        What ``forward`` returns, without a cache: the program itself holds it.

    Raises:
        InvalidRequestError: The model, or an argument, cannot be exported.
    """
    _check(model, given)
    core = model.core
    ids, embeddings = given["input_ids"], given["inputs_embeds"]
    embeddings = core.embed(ids.long()) if embeddings is None else embeddings.to(core.dtype)
    rows, length, _ = embeddings.shape
    cache, places = given["past_key_values"], given["cache_position"]
    buffers = None
    if cache is None:
        places = torch.arange(length, dtype=torch.int64, device=embeddings.device)
    else:
        buffers = _outside(partial(_buffers, core.config, cache, int(rows)))
    mask = given["attention_mask"]
    width = length if buffers is None else buffers[0].shape[3]
    seen = None if mask is None else _seen(mask, width)
    most = core.config.max_position_embeddings if buffers is None else width
    _outside(partial(core.prepare_export, length if isinstance(length, int) else most))
    positions = given["position_ids"]
    if positions is None:
        positions = places[None]
        if seen is not None:
            counted = seen.long().cumsum(1) - 1
            positions = counted.index_select(1, places).clamp(min=0)
    elif positions.dim() == 1:
        positions = positions[None]
    attention = ExportedAttention(core.config, places, buffers, seen)
    with core.keeping_no_spaces():
        hidden = core.hidden(embeddings, positions.long(), attention)
        logits = core.project(states_to_project(hidden, given["logits_to_keep"]))
    *_, return_dict = call_settings(model.config, None, None, None, given["return_dict"])
    _register_output()
    output = CausalLMOutputWithPast(logits=logits)
    return output if return_dict else output.to_tuple()


def _check(model: Any, given: Mapping[str, Any]) -> None:
    """Refuse what cannot be exported."""
    config, cache = model.core.config, given["past_key_values"]
    reason = None
    if config.is_encoder_decoder:
        reason = "a model with an encoder has two caches; only decoders are exported"
    elif keeps_states(config):
        reason = "layers of this model keep states, for which there is no static cache"
    elif any(plan.experts is not None for plan in config.layer_plans):
        reason = (
            "the data chooses the experts of this model, and a program computes the same for all"
        )
    if reason is not None:
        raise InvalidRequestError("torch.export", config.model_type, reason)
    for name, value in given.items():
        if name not in _TAKEN and value is not None and value is not False:
            raise InvalidRequestError(name, type(value).__name__, "an exported program has no such")
    if model.device.type == "cpu" and native.supports(model.dtype):
        allowed = (
            "the model was loaded for our own kernels, which no graph holds; set "
            "ASYNCGEN_KERNELS=torch in the environment of the program that exports"
        )
        raise InvalidRequestError("torch.export", "forward", allowed)
    if torch.compiler.is_dynamo_compiling():
        raise InvalidRequestError("strict", True, "torch.export with `strict=False` works")
    if (given["input_ids"] is None) == (given["inputs_embeds"] is None):
        allowed = "give exactly one of `input_ids` and `inputs_embeds`"
        raise InvalidRequestError("input_ids", None, allowed)
    is_plain = isinstance(cache, StaticCache) and not cache.offloading
    if cache is not None and not is_plain:
        allowed = "an exported program holds a StaticCache that is not offloaded, or none"
        raise InvalidRequestError("past_key_values", type(cache).__name__, allowed)
    if cache is not None and given["cache_position"] is None:
        allowed = "give the places of the tokens in the cache, so that the program takes them"
        raise InvalidRequestError("cache_position", None, allowed)
    if cache is None and given["cache_position"] is not None:
        allowed = "tells the places in a cache, and there is none; give `position_ids`"
        raise InvalidRequestError("cache_position", InWords("a tensor"), allowed)
    has_chunks = any(options.is_chunked or options.slopes for options in config.attention)
    if given["attention_mask"] is not None and has_chunks:
        allowed = "this model counts distances from the first token; export it without a mask"
        raise InvalidRequestError("attention_mask", InWords("a tensor"), allowed)


def _buffers(config: Any, cache: StaticCache, rows: int) -> list[Tensor]:
    """Return the buffers of a static cache, ``[2, B, K, T, D]`` each.

    A layer with a window gets a whole buffer as well: the mask hides what lies outside.
    """
    found: list[Tensor] = []
    for index in range(config.num_hidden_layers):
        layer = cache.layers[index]
        if type(layer) is not StaticLayer:
            layer = StaticLayer(cache.max_cache_len, rows=rows, dtype=cache.dtype)
            cache.layers[index] = layer
        layer._rows = layer._rows or rows
        layer.allocate(config.num_key_value_heads, config.head_dim)
        assert layer.pair is not None
        found.append(layer.pair)
    return found


def _outside(function: Callable[[], Any]) -> Any:
    """Call a function on a thread of its own, where it is not a part of the program."""
    found: list[Any] = []
    call_elsewhere(lambda: found.append(function()))
    return found[0]


def _seen(mask: Tensor, width: int) -> Tensor:
    """Return a mask ``[B, T]`` of tokens; those behind its end are seen.

    Raises:
        InvalidRequestError: It is longer than the text, or than the cache.
    """
    if mask.shape[1] > width:
        allowed = f"at most {width} columns: the positions of the cache, or of the text without one"
        raise InvalidRequestError("attention_mask", tuple(mask.shape), allowed)
    return torch.nn.functional.pad(mask.bool(), (0, width - mask.shape[1]), value=True)


@functools.cache
def _register_output() -> None:
    """Tell torch how outputs are taken apart, once."""
    kind = CausalLMOutputWithPast
    torch.export.register_dataclass(kind, serialized_type_name=f"asyncgen.{kind.__name__}")
