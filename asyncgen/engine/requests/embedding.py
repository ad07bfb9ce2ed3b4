"""From a text to a request for its embedding: what can be refused is refused here.

Such a request goes through the scheduler as a prompt does, and asks for no token. It runs on a
worker thread, as `asyncgen.engine.requests.prepare` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.checkpoints.embedding_settings import EmbeddingSettings
from asyncgen.engine.requests.params import RequestParams
from asyncgen.engine.requests.pooling import HiddenPool
from asyncgen.engine.requests.prepare import read_prompt
from asyncgen.engine.requests.request import Request, clock
from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import MaxTimeCriteria, StoppingCriteriaList
from asyncgen.generation.stopping.stop_checks import StopChecks
from asyncgen.types import size_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.engine.kv_cache.block_pool import CacheSize
    from asyncgen.engine.requests.admission import Seat
    from asyncgen.engine.requests.request import Sink
    from asyncgen.engine.requests.served_model import ServedModel
    from asyncgen.generation.stopping.cancel import CancelCriteria
    from asyncgen.types import Pooling, Prompt


def prepare_embedding(
    served: ServedModel,
    prompt: Prompt,
    given: Mapping[str, Any],
    *,
    cancel: CancelCriteria,
    sink: Sink,
    place: Seat | None = None,
) -> Request:
    """Tokenize a text and check everything.

    Args:
        served: The engine's model.
        prompt: A text or token ids, form already checked.
        given: Keyword parameters of ``embed``, each already held to its own rule.
        cancel: The flag of the reader.
        sink: Where events will go.
        place: Its place in the engine's queue.

    Returns:
        A request that is ready to be posted; its ``pool`` has the vector in the end.

    Raises:
        InvalidRequestError: The model embeds nothing, or not so; or a text that cannot be served.
        ContextLengthError: The text does not fit the context, or the memory.
    """
    accepted_at = clock()
    model = served.model
    _require_decoder(model)
    settings: EmbeddingSettings = getattr(model, "embedding_settings", EmbeddingSettings())
    layers = settings.layers
    width = layers[-1].width if layers else model.core.config.hidden_size
    settings.check_dimensions(given.get("dimensions"), width)
    pooling = _pooling(settings, given.get("pooling"))
    normalize = given.get("normalize")
    words = _words(settings, prompt, pooling, given.get("prompt_name"))
    text = words + prompt if isinstance(prompt, str) else prompt
    ids, _ = read_prompt(served, text, {})
    _check_length(model, served.room, prompt, len(ids))
    return Request(
        prompt_ids=ids,
        params=_params(given),
        processors=LogitsProcessorList(),
        stop_checks=_stop_checks(cancel, given.get("max_time")),
        cancel=cancel,
        sink=sink,
        continues_text=False,
        accepted_at=accepted_at,
        place=place,
        fingerprint=served.fingerprint,
        pool=HiddenPool(
            pooling,
            normalize=settings.normalize if normalize is None else normalize,
            dimensions=given.get("dimensions"),
            layers=layers,
            is_whole=model.core.config.is_bidirectional,
        ),
    )


def _require_decoder(model: Any) -> None:
    """Refuse a model whose hidden states cannot be had from packed rows."""
    core = getattr(model, "core", None)
    if not callable(getattr(core, "hidden_packed", None)) or model.config.is_encoder_decoder:
        name = type(model).__name__
        raise InvalidRequestError("model", name, "embeddings need a decoder of this library")


def _pooling(settings: EmbeddingSettings, given: Pooling | None) -> Pooling:
    if given is not None:
        return given
    if settings.unsupported is not None:
        allowed = f"{settings.unsupported}, which is not supported; give 'last' or 'mean'"
        raise InvalidRequestError("pooling", None, allowed)
    return settings.pooling


def _words(settings: EmbeddingSettings, prompt: Prompt, pooling: Pooling, name: str | None) -> str:
    """Return the words before a text; none before token ids, which are complete."""
    is_text = isinstance(prompt, str)
    if name and not is_text:
        raise InvalidRequestError("prompt_name", name, "stands before a text, not before token ids")
    if name is None:
        name = settings.default_prompt_name if is_text else None
    if not name:
        return ""
    if name not in settings.prompts:
        listed = ", ".join(map(repr, settings.prompts)) or "none"
        raise InvalidRequestError("prompt_name", name, f"one of the model's: {listed}")
    if settings.prompts[name] and pooling == "mean" and not settings.pools_prompts:
        allowed = "the model leaves these words out of the mean, which is not supported; give ''"
        raise InvalidRequestError("prompt_name", name, allowed)
    return settings.prompts[name]


def _check_length(model: Any, room: CacheSize | None, prompt: Prompt, length: int) -> None:
    """Refuse a text that is longer than the model or its memory."""
    limits = [
        (getattr(model.config, "max_position_embeddings", None), "the context holds {}"),
        (model.core.packed_length, "with `dynamic` rope a text has at most {}"),
        (
            None if room is None else room.longest_text(length),
            "the memory for keys and values holds {}",
        ),
    ]
    for limit, why in limits:
        if limit is not None and length > limit:
            allowed = f"it has {length} tokens, and {why.format(limit)}; shorten it"
            raise ContextLengthError("prompt", size_of(prompt), allowed)


def _params(given: Mapping[str, Any]) -> RequestParams:
    """Parameters of a request that asks for no token."""
    names = ("priority", "client", "cache_salt")
    return RequestParams(
        config=GenerationConfig(),
        mode=GenerationMode.GREEDY_SEARCH,
        seed=0,
        stop=(),
        top_logprobs=None,
        num_samples=1,
        processors=LogitsProcessorList(),
        criteria=StoppingCriteriaList(),
        **{name: given[name] for name in names if given.get(name) is not None},
    )


def _stop_checks(cancel: CancelCriteria, max_time: float | None) -> StopChecks:
    criteria = StoppingCriteriaList([cancel])
    if max_time is not None:
        criteria.append(MaxTimeCriteria(max_time))
    return StopChecks(criteria)
