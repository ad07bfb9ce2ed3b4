"""From a configuration to the list of processors, in the documented order."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Any

# The processors of this package are known with the package itself, these by this line.
import asyncgen.generation.logits.grammar_mask
import asyncgen.generation.watermarking  # noqa: F401
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.checks import check_made_once, check_supported
from asyncgen.generation.logits.base import BuildContext, Stage, processor_classes
from asyncgen.generation.logits.checked_processors import CheckedProcessors
from asyncgen.generation.logits.llama_filters import in_llama_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits.base import Definition
    from asyncgen.structured.grammar import Grammar


def eos_ids(config: GenerationConfig) -> list[int]:
    """Return the end-of-sequence ids of a configuration."""
    eos = config.eos_token_id
    if eos is None:
        return []
    return [eos] if isinstance(eos, int) else list(eos)


def build_logits_processors(
    config: GenerationConfig,
    *,
    user_processors: Sequence[Callable[..., Any]] | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None,
    grammar: Grammar | None = None,
    arguments: Mapping[str, Any] = MappingProxyType({}),
    **setting_fields: Any,
) -> CheckedProcessors:
    """Build the processors that a configuration asks for.

    Args:
        config: Complete configuration; what is None is off. ``max_length`` counts the prompt.
        user_processors: Run after the processors and before the filters of sampling.
        presence_penalty: Subtracted from generated tokens once; 0.0 is off.
        frequency_penalty: Subtracted from generated tokens each time; 0.0 is off.
        prefix_allowed_tokens_fn: (index of the prompt, ids [T]) -> ids that may follow.
        grammar: Compiled format of the answer, for structured output.
        arguments: Further parameters of processors that are no fields of the configuration; with
            ``last_temperature`` the filters run in llama.cpp's order.
        setting_fields: ``prompt_length``, ``eos_token_ids``, ``device`` and the other fields of
            a `BuildContext`.

    Returns:
        The processors in the documented order.

    Raises:
        InvalidRequestError: A field is not supported yet or out of range, or the user passed a
            processor that the configuration makes as well.
    """
    check_supported(config)
    given = {
        **arguments,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn,
        "grammar": grammar,
    }
    setting = BuildContext(config, arguments=given, **setting_fields)
    built = _build(Stage.PROCESSOR, setting)
    if user_processors:
        check_made_once("logits_processor", "processor", built, user_processors)
        built.extend(user_processors)
    if config.do_sample:
        warpers = _build(Stage.WARPER, setting)
        built.extend(in_llama_order(warpers) if "last_temperature" in arguments else warpers)
    built.extend(_build(Stage.LAST, setting))
    return built


def _build(stage: Stage, setting: BuildContext) -> CheckedProcessors:
    built = CheckedProcessors()
    for kind in processor_classes(stage):
        definition: Definition = kind.definition
        name = definition.parameter
        value = None if name is None else setting.value(name)
        if value is None or (definition.needs_eos and setting.eos_token_ids is None):
            continue
        try:
            wanted = definition.wants(value)
        except TypeError as error:
            raise InvalidRequestError(str(name), value, "must be a number") from error
        if wanted:
            built.append(definition.build(kind, value, setting))
    return built
