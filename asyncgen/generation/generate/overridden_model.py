"""``prepare_inputs_for_generation``: what a step hands to the model, for users to change.

Whether they did is found out here; the steps of a model without an override never ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.custom_methods import parameter_names
from asyncgen.generation.generate.written_model import WrittenModel, as_written
from asyncgen.generation.strategies.overridden_forward import ModelCaller

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig

METHODS = ("prepare_inputs_for_generation", "forward")
"""What generation calls of a model that has its own version of one of them."""

_NEVER_HANDED_ON = frozenset({"labels", "next_sequence_length"})

_DOCUMENTED = frozenset(
    "input_ids attention_mask position_ids past_key_values inputs_embeds token_type_ids use_cache "
    "output_attentions output_hidden_states return_dict cache_position logits_to_keep labels "
    "next_sequence_length is_first_iteration encoder_outputs decoder_input_ids "
    "decoder_attention_mask decoder_inputs_embeds".split()
)

_PER_POSITION = ("position_ids", "token_type_ids")


def is_overridden(model: Any) -> bool:
    """Return whether a user overrode, or hooked into, a method that the forward pass calls.

    Args:
        model: Any; what is compiled of it counts as what it was compiled from.
    """
    if isinstance(model, WrittenModel):
        return True
    if getattr(model, "_forward_hooks", None) or getattr(model, "_forward_pre_hooks", None):
        return True
    return any(_is_method_overridden(model, name) for name in METHODS)


def hook_parameters(model: Any) -> frozenset[str]:
    """Arguments that ``generate`` takes for an overridden model, beside its own."""
    names = [parameter_names(getattr(model, name)) for name in METHODS]
    return frozenset[str]().union(*names) - _DOCUMENTED


def model_call(
    model: Any, config: GenerationConfig, mode: GenerationMode, given: Mapping[str, Any], rows: int
) -> ModelCaller:
    """Call an overridden model in every step.

    Args:
        model: The model.
        config: Complete configuration.
        mode: The strategy.
        given: The caller's arguments that are no fields of the configuration.
        rows: Prompts.

    Raises:
        InvalidRequestError: The strategy reads the network itself and would pass the override by,
            or the override does not take embeddings.
    """
    reads_layers = {
        "penalty_alpha": mode is GenerationMode.CONTRASTIVE_SEARCH,
        "dola_layers": mode is GenerationMode.DOLA_GENERATION,
        "assistant_early_exit": config.assistant_early_exit is not None,
    }
    for name, is_wanted in reads_layers.items():
        if is_wanted:
            raise InvalidRequestError(
                name,
                getattr(config, name),
                "reads the layers of the network, past the methods that this model overrides "
                f"({' or '.join(METHODS)}); use another strategy",
            )
    if given.get("inputs_embeds") is not None and not model.config.is_encoder_decoder:
        if "inputs_embeds" not in parameter_names(model.prepare_inputs_for_generation):
            allowed = "`prepare_inputs_for_generation` of this model has no parameter of that name"
            name = type(as_written(model)).__name__
            raise InvalidRequestError("inputs_embeds", name, allowed)
        if config.use_cache is False:
            allowed = "an overridden model is told embeddings in the first step only; use a cache"
            raise InvalidRequestError("use_cache", False, allowed)
    own = hook_parameters(model) | {"logits_to_keep"}
    arguments = {name: given[name] for name in own & given.keys()}
    needs_mask = isinstance(model, WrittenModel) and model.takes_mask
    return ModelCaller(model, arguments, rows, needs_mask)


def model_inputs(
    input_ids: Tensor,
    *,
    is_encoder_decoder: bool,
    next_sequence_length: int | None,
    attention_mask: Tensor | None,
    inputs_embeds: Tensor | None,
    is_first_iteration: bool | None,
    others: Mapping[str, Any],
) -> dict[str, Any]:
    """The arguments of one call of a model, as ``prepare_inputs_for_generation`` documents them."""
    fresh = slice(None) if next_sequence_length is None else slice(-next_sequence_length, None)
    inputs: dict[str, Any] = {}
    if is_encoder_decoder:
        inputs["decoder_input_ids"] = input_ids[:, fresh].contiguous()
    elif inputs_embeds is not None and is_first_iteration:
        inputs["inputs_embeds"] = inputs_embeds[:, fresh].contiguous()
    else:
        inputs["input_ids"] = input_ids[:, fresh].contiguous()
    length = next(iter(inputs.values())).shape[1]
    for name, value in others.items():
        if name not in _NEVER_HANDED_ON and value is not None:
            inputs[name] = value[..., -length:] if name in _PER_POSITION else value
    if attention_mask is not None:
        inputs["attention_mask"] = attention_mask
    return inputs


def _is_method_overridden(model: Any, name: str) -> bool:
    """Return whether a model overrides a method of its class in this library."""
    ours = (kind for kind in type(model).__mro__ if kind.__module__.startswith("asyncgen."))
    written = next((vars(kind)[name] for kind in ours if name in vars(kind)), None)
    method = getattr(model, name, None)
    method = getattr(method, "_torchdynamo_orig_callable", method)
    return written is not None and getattr(method, "__func__", None) is not written
