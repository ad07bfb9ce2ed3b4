"""From a configuration to the list of processors, in the documented order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

# The processors of this package are known with the package itself, these by this line.
import asyncgen.generation.watermarking  # noqa: F401
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.checks import check_supported
from asyncgen.generation.logits.base import Setting, Stage, kinds
from asyncgen.generation.logits.checked import CheckedProcessors

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import torch
    from torch import Tensor

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.generation.logits.base import Definition, Guidance


def build_logits_processors(
    config: GenerationConfig,
    *,
    prompt_length: int,
    eos_token_ids: Tensor | None,
    device: str | torch.device,
    user_processors: Sequence[Callable[..., Any]] | None = None,
    padding: Tensor | None = None,
    encoder_input_ids: Tensor | None = None,
    vocab_size: int | None = None,
    guidance: Guidance | None = None,
    tail_only: bool = False,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None = None,
) -> CheckedProcessors:
    """Build the processors that a configuration asks for.

    Args:
        config: Complete configuration; what is None is off. ``max_length`` counts the prompt.
        prompt_length: Length of the prompt, padding included.
        eos_token_ids: Ids that end a sequence, int64 [N], or None.
        device: Where scores will be.
        user_processors: Run after the processors and before the filters of sampling.
        padding: Left padding of each row, int64 [B]; padding is no token to penalise.
        encoder_input_ids: What the encoder read, or the prompt of a model without one, [B, T].
        vocab_size: Tokens of the model, which a watermark needs.
        guidance: What classifier-free guidance computes with.
        tail_only: Whether the rows of one generation only ever change at their end. Then what
            looks at past tokens costs the same however many there are.
        presence_penalty: Subtracted from generated tokens once; 0.0 is off.
        frequency_penalty: Subtracted from generated tokens each time; 0.0 is off.
        prefix_allowed_tokens_fn: (index of the prompt, ids [T]) -> ids that may follow.

    Returns:
        The processors in the documented order.

    Raises:
        InvalidRequestError: A field is not supported yet or out of range, or the user passed a
            processor that the configuration makes as well.
    """
    check_supported(config)
    setting = Setting(
        config,
        prompt_length,
        eos_token_ids,
        device,
        padding,
        encoder_input_ids,
        vocab_size,
        guidance,
        tail_only,
        arguments={
            "presence_penalty": presence_penalty,
            "frequency_penalty": frequency_penalty,
            "prefix_allowed_tokens_fn": prefix_allowed_tokens_fn,
        },
    )
    built = _build(kinds(Stage.PROCESSOR), setting)
    made = {type(own) for own in built}
    for processor in user_processors or ():
        if type(processor) in made:
            allowed = (
                "the configuration already makes such a processor; pass either the object or the"
                " configuration field"
            )
            raise InvalidRequestError("logits_processor", type(processor).__name__, allowed)
    built.extend(user_processors or ())
    if config.do_sample:
        built.extend(_build(kinds(Stage.WARPER), setting))
    built.extend(_build(kinds(Stage.LAST), setting))
    return built


def _build(kinds: list[Any], setting: Setting) -> CheckedProcessors:
    built = CheckedProcessors()
    for kind in kinds:
        definition: Definition = kind.definition
        name = definition.parameter
        value = None if name is None else setting.value(name)
        if value is None or (definition.needs_eos and setting.eos is None):
            continue
        try:
            wanted = definition.wants(value)
        except TypeError as error:
            raise InvalidRequestError(str(name), value, "must be a number") from error
        if wanted:
            built.append(definition.build(kind, value, setting))
    return built
