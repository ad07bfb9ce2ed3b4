"""The grammar of a request: what a shape can be had together with, and its compilation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.structured.grammar_compiler import compile_grammar

if TYPE_CHECKING:
    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.generation.generate.plan_parts import GenerativeModel
    from asyncgen.structured.grammar import Grammar
    from asyncgen.structured.output_format import OutputFormat
    from asyncgen.text.tokenizer import Tokenizer


_OTHERWISE = frozenset({GenerationMode.CONTRASTIVE_SEARCH, GenerationMode.CONSTRAINED_BEAM_SEARCH})
"""Strategies that weigh tokens which a grammar bans, or have words of their own to place."""


def compile_for(
    model: GenerativeModel, tokenizer: Tokenizer | None, params: RequestParams, shape: OutputFormat
) -> Grammar:
    """Compile the shape of a request.

    Args:
        model: The engine's model.
        tokenizer: Its tokenizer.
        params: Of the request, resolved.
        shape: What its answers must look like.

    Returns:
        The grammar.

    Raises:
        InvalidRequestError: The shape is wrong, not supported or too complex, or cannot be had
            together with another parameter.
    """
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
        raise InvalidRequestError(shape.parameter, shape.source[:80], f"{what}; leave one out")
    return compile_grammar(shape, tokenizer, model.core.config.vocab_size)
