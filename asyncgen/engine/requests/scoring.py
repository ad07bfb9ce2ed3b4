"""Requests that ask what the tokens of their prompt are worth; some of them for nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.engine.sampling.prompt_logprobs import PromptLogprobs
from asyncgen.errors import ContextLengthError, InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.generation.config import GenerationConfig
    from asyncgen.text.tokenizer import Tokenizer


def end_with_prompt(
    config: GenerationConfig, given: Mapping[str, Any], prompt_length: int, context: int | None
) -> None:
    """Let the text end where the prompt does, which may fill the context.

    Args:
        config: Of the request; its lengths are set.
        given: Fields that the request gave.
        prompt_length: Number of prompt ids.
        context: Most positions the model has, ``None`` for no limit.

    Raises:
        InvalidRequestError: Another length was given as well.
        ContextLengthError: The prompt does not fit.
    """
    for name in ("max_length", "min_length", "min_new_tokens"):
        if given.get(name):
            allowed = "`max_new_tokens` is 0, so nothing follows the prompt; leave it out"
            raise InvalidRequestError(name, given[name], allowed)
    if context is not None and prompt_length > context:
        allowed = f"it has {prompt_length} tokens, and the context holds {context}; shorten it"
        raise ContextLengthError("prompt", prompt_length, allowed)
    config.max_length, config.max_new_tokens = prompt_length, None
    config.min_length, config.min_new_tokens = 0, None


def scores_for(
    model: Any,
    tokenizer: Tokenizer | None,
    prompt_ids: list[int],
    top: int,
    alone: str | None,
    *,
    generates: bool,
) -> PromptLogprobs:
    """Make the receiver of the log-probabilities of a prompt.

    Args:
        model: The engine's model.
        tokenizer: Gives the tokens their texts; ``None``: there are none.
        prompt_ids: The prompt.
        top: Alternatives of each token.
        alone: Why the shared batch cannot serve the request; ``None`` where it can.
        generates: Whether tokens are asked for as well.

    Raises:
        InvalidRequestError: The prompt is not read by the shared batch.
    """
    if alone is not None:
        allowed = f"needs the shared batch, which cannot serve this request: {alone}"
        raise InvalidRequestError("prompt_logprobs", top, allowed)
    project, size = model.core.project, model.config.vocab_size
    return PromptLogprobs(prompt_ids, top, project, size, tokenizer, generates=generates)
