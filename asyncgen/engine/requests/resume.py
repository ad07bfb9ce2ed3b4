"""Requests that go on behind tokens that were generated already, here or elsewhere.

Draws are a function of seed, position and token, and what processors and texts keep follows from
the tokens. So a request that is told its first tokens goes on as if it had generated them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch

from asyncgen.engine.requests.request import GivenTokens
from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.generation.config.modes import GenerationMode
from asyncgen.generation.stopping.criteria import StopStringCriteria
from asyncgen.runtime.transfer import host_ints

if TYPE_CHECKING:
    from asyncgen.engine.requests.params import RequestParams
    from asyncgen.engine.requests.request import Request
    from asyncgen.generation.generate.plan_parts import GenerativeModel
    from asyncgen.text.tokenizer import Tokenizer
    from asyncgen.types import FinishReason


_MODES = frozenset({GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE})
"""Strategies that settle a token a step for good, and keep nothing else between two steps."""


def check_continues(model: GenerativeModel, params: RequestParams) -> None:
    """Refuse what does not follow from tokens alone, before anything else is done for it.

    Args:
        model: The engine's model.
        params: Of the request, resolved, with ``generated_ids``.

    Raises:
        InvalidRequestError: Names the parameter.
    """
    what = None
    if not hasattr(model, "core"):
        what = "a foreign model object"
    elif params.method is not None:
        what = "a decoding method of your own"
    elif params.mode not in _MODES:
        what = params.mode.value.replace("_", " ")
    elif params.config.token_healing:
        what = "`token_healing`, which chooses a token of the prompt again,"
    if what is not None:
        allowed = (
            f"{what} cannot go on behind tokens; run it again with the same `seed`, and drop what "
            "was read already"
        )
        raise InvalidRequestError("generated_ids", _shortly(params.generated_ids), allowed)
    size = model.config.vocab_size
    for token_id in (each for ids in params.generated_ids for each in ids):
        if not 0 <= token_id < size:
            allowed = f"token ids are from 0 to {size - 1}"
            raise InvalidRequestError("generated_ids", token_id, allowed)


def take_up(request: Request, tokenizer: Tokenizer | None) -> tuple[GivenTokens, ...]:
    """Bring the samples of a request to where their tokens end.

    Args:
        request: Its parameters have ``generated_ids``.
        tokenizer: Turns ids to text; ``None`` where only ids are wanted.

    Returns:
        One entry a sample.

    Raises:
        InvalidRequestError: A sample would have ended before its last token, or samples that take
            turns in one rectangle are of different lengths.
    """
    samples = tuple(
        _taken_up(request, tokenizer, index, ids)
        for index, ids in enumerate(request.params.generated_ids)
    )
    lengths = {len(each.token_ids) for each in samples if each.reason is None}
    if request.alone is not None and len(lengths) > 1:
        allowed = f"as many for each sample that goes on, because {request.alone}"
        raise InvalidRequestError("generated_ids", InWords(f"{sorted(lengths)} tokens"), allowed)
    return samples


def _taken_up(
    request: Request, tokenizer: Tokenizer | None, index: int, ids: tuple[int, ...]
) -> GivenTokens:
    """One sample, behind its tokens."""
    text, checks = request.text_of(index, tokenizer), request.stop_checks
    if not ids:
        return GivenTokens(ids, text)
    shown, stop = text.add(ids[:-1])
    ended = stop or next((each for each in ids[:-1] if each in checks.eos_token_ids), None)
    if ended is not None:
        allowed = f"sample {index} would have ended with {ended!r}, and there are tokens behind it"
        raise InvalidRequestError("generated_ids", _shortly((ids,)), allowed)
    length, most = len(request.starting_ids) + len(ids), checks.max_length
    if most is not None and length > most:
        allowed = f"at most {most - len(request.starting_ids)} tokens can follow the prompt"
        raise InvalidRequestError("generated_ids", InWords(f"{len(ids)} tokens"), allowed)
    newest, stop = text.add(ids[-1:])
    shown += newest
    reason = checks.reason(index, ids[-1], length, stops=_meets_stop_strings(request, index))
    if request.grammar is not None:
        reason = _shaped(request, index, ids, reason)
    if stop is not None:
        is_cut = stop != "" and request.grammar is not None
        stopped: FinishReason = "incomplete" if is_cut else "stop"
        return GivenTokens(ids, text, shown, stopped, stop)
    if reason not in ("stop", "incomplete", "length"):
        return GivenTokens(ids, text, shown)  # a deadline or a cancel is found in its turn
    ending = ids[-1] if reason == "stop" and ids[-1] in checks.eos_token_ids else None
    return GivenTokens(ids, text, shown, cast("FinishReason", reason), ending)


def _shaped(request: Request, index: int, ids: tuple[int, ...], reason: str | None) -> str | None:
    """Return the reason that ends a structured answer, and check its tokens."""
    assert request.grammar is not None
    matcher = request.grammar.matcher(request.stop_checks.eos_token_ids)
    matcher.extend(ids[:-1])
    is_over = matcher.is_over
    matcher.extend(ids)
    if is_over or matcher.is_lost:
        allowed = f"sample {index} is no beginning of an answer that `{_asked(request)}` allows"
        raise InvalidRequestError("generated_ids", _shortly((ids,)), allowed)
    if matcher.is_over:
        return "stop"
    return "incomplete" if reason == "stop" and not matcher.is_complete else reason


def _asked(request: Request) -> str:
    """The parameter that asked for a shape."""
    return "" if request.params.output_format is None else request.params.output_format.parameter


def _meets_stop_strings(request: Request, index: int) -> bool:
    """Tell whether the newest token of a sample completes one of ``stop_strings``.

    What the user wrote is asked from the next token on: the scores of this one are not known.
    """
    ours = [
        each for each in request.stop_checks.tensor_criteria if isinstance(each, StopStringCriteria)
    ]
    if not ours:
        return False
    ids = host_ints([[*request.starting_ids, *request.params.generated_ids[index]]])
    return any(
        bool(each(ids, torch.empty(1, 0, dtype=torch.float32, device="cpu"))) for each in ours
    )


def _shortly(lists: tuple[tuple[int, ...], ...]) -> str:
    """Token ids for a message: the first few."""
    first = next((ids for ids in lists if ids), ())
    return f"[{', '.join(map(str, first[:4]))}{', …' if len(first) > 4 else ''}]"
