"""Prepare the samplers of llama.cpp for a request: what they are built of, and go on from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.engine.sampling.given_scores import GivenScores
from asyncgen.engine.sampling.random_draws import HashDraw
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.logits.dry import find_breakers

if TYPE_CHECKING:
    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.engine.requests.served_model import ServedModel
    from asyncgen.generation.logits.base import LogitsProcessorList


def check_samplers(served: ServedModel, params: RequestParams) -> None:
    """Refuse samplers where another library, or the user, runs the processors.

    Raises:
        InvalidRequestError: Names the sampler.
    """
    if served.is_ours and params.method is None:
        return
    for name, value in params.samplers.items():
        allowed = "needs a model and a strategy of this library; leave it out"
        raise InvalidRequestError(name, value, allowed)


def sampler_arguments(served: ServedModel, params: RequestParams) -> dict[str, Any]:
    """Return what the samplers of llama.cpp are built of."""
    arguments = {**params.samplers, "chance": HashDraw(params.seed).chance}
    texts = params.samplers.get("dry_sequence_breakers")
    if texts:
        if served.tokenizer is None:
            allowed = "needs a tokenizer; give an empty list"
            raise InvalidRequestError("dry_sequence_breakers", texts, allowed)
        arguments["dry_breakers"] = find_breakers(served.tokenizer, texts, served.vocab_size)
    return arguments


def given_scores(
    served: ServedModel,
    params: RequestParams,
    prompt_ids: list[int],
    processors: LogitsProcessorList,
    alone: str | None,
) -> GivenScores | None:
    """Make the receiver of the scores of given tokens, where a sampler follows them."""
    if not any(params.generated_ids):
        return None
    why = None if alone is None else f"the shared batch, which cannot serve it: {alone}"
    if params.num_samples > 1:
        why = "a request of one sample"
    if params.prompt_logprobs is not None:
        why = "a request without `prompt_logprobs`"
    if why is not None:
        allowed = f"goes on behind `generated_ids` only in {why}"
        raise InvalidRequestError("mirostat", params.samplers["mirostat"], allowed)
    project = served.model.core.project
    return GivenScores(processors, prompt_ids, params.generated_ids[0], project)
