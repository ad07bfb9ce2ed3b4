"""Make the grammar of a request from the format that its answer must have."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from asyncgen.engine.requests.tool_call_output import shape_beside_calls, told_shape
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.structured.grammar_compiler import compile_grammar

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.engine.requests.conversation import Rendered
    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.engine.requests.served_model import ServedModel
    from asyncgen.generation.generate.plan_parts import GenerativeModel
    from asyncgen.structured.grammar import Grammar
    from asyncgen.structured.output_format import OutputFormat
    from asyncgen.text.tokenizer import Tokenizer


_OTHERWISE = frozenset({GenerationMode.CONTRASTIVE_SEARCH, GenerationMode.CONSTRAINED_BEAM_SEARCH})
"""Strategies that weigh tokens which a grammar bans, or have words of their own to place."""


def structured_output(
    served: ServedModel,
    params: RequestParams,
    rendered: Rendered | None,
    given: Mapping[str, Any],
) -> tuple[RequestParams, Grammar | None]:
    """Join the format that an answer was asked for with the one that its calls must have.

    Args:
        served: The engine's model.
        params: Of the request, resolved.
        rendered: Its messages, as the model reads them; ``None`` for another prompt.
        given: Parameters of the request; tools may be called.

    Returns:
        The parameters, whose output format is the one of the text that the reader gets, and the
        grammar of the whole answer; ``None`` where it is free.

    Raises:
        InvalidRequestError: The format is wrong, not supported or too complex, or cannot be had
            together with another parameter.
    """
    asked = whole = params.output_format
    formats = served.formats
    if rendered is not None:
        reading = rendered.reading
        if asked is None:
            whole = rendered.shape
        elif rendered.in_reasoning and formats.reasoning is not None:
            whole = replace(asked, after=formats.reasoning.end)
        if asked is not None and reading is not None and reading.parameters is not None:
            assert whole is not None
            whole = shape_beside_calls(whole, served.tokenizer, formats, given)
        is_told_apart = reading is not None and reading.reads_reasoning
        told = told_shape(
            asked, formats, in_reasoning=rendered.in_reasoning, is_told_apart=is_told_apart
        )
        params = replace(params, output_format=told)
    if whole is None:
        return params, None
    return params, _compile(served.model, served.tokenizer, params, whole)


def _compile(
    model: GenerativeModel, tokenizer: Tokenizer | None, params: RequestParams, asked: OutputFormat
) -> Grammar:
    """Compile the format of an answer, where it can be had together with the other parameters."""
    config = params.config
    what = None
    if not hasattr(model, "core"):
        what = "a foreign model object decodes by itself"
    elif params.method is not None:
        what = "a decoding method of your own has rules of its own"
    elif params.mode in _OTHERWISE:
        what = f"{params.mode.value.replace('_', ' ')} has rules of its own"
    elif config.token_healing:
        what = "`token_healing` chooses a token of the prompt again"
    elif config.forced_bos_token_id is not None or config.forced_eos_token_id is not None:
        what = "`forced_bos_token_id` and `forced_eos_token_id` put tokens into the answer"
    elif tokenizer is None:
        what = "a grammar needs a tokenizer; pass `tokenizer=`"
    if what is not None:
        raise InvalidRequestError(asked.parameter, asked.source[:80], f"{what}; leave one out")
    return compile_grammar(asked, tokenizer, model.core.config.vocab_size)
