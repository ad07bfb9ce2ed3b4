"""Ranges of single parameters that the documented configuration leaves to whoever reads them.

A processor that is off for a value out of range would drop the parameter in silence; here it is an
error that names it, before any work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeAlias

from asyncgen.errors import InvalidRequestError

__all__ = [
    "MOST_ROWS",
    "MOST_STOP_CHARACTERS",
    "check_callables",
    "check_count",
    "check_stops",
    "check_text",
    "check_types",
    "check_values",
]

MOST_ROWS = 4096
"""Samples, or beams, of one request. Far beyond what shares a step; a slip of the keyboard must not
make the engine lay out a thousand million rows while everybody waits."""

MOST_STOP_CHARACTERS = 2**14
"""Of all stop strings of a request together: they are searched for at every token."""

_WORD = 2**63

Rule: TypeAlias = tuple[tuple[str, ...], Callable[[Any], bool], str]


def _is_real(value: object) -> bool:
    """A finite number, of a size that a machine computes with."""
    return isinstance(value, float) and math.isfinite(value) or _is_whole(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -_WORD <= value < _WORD


def _are_ids(value: Any) -> bool:
    ids = value if isinstance(value, list | tuple) else [value]
    return all(_is_whole(token_id) and token_id >= 0 for token_id in ids)


RULES: tuple[Rule, ...] = (
    (("top_p", "typical_p"), lambda it: _is_real(it) and 0 <= it <= 1, "a number from 0 to 1"),
    (
        ("epsilon_cutoff", "eta_cutoff"),
        lambda it: _is_real(it) and 0 <= it < 1,
        "a number from 0 to below 1",
    ),
    (
        ("repetition_penalty", "encoder_repetition_penalty", "max_time"),
        lambda it: _is_real(it) and it > 0,
        "a number above 0",
    ),
    (
        ("no_repeat_ngram_size", "encoder_no_repeat_ngram_size", "min_length", "min_new_tokens"),
        lambda it: _is_whole(it) and it >= 0,
        "a whole number of at least 0",
    ),
    (
        ("prefill_chunk_size", "max_cache_len"),
        lambda it: _is_whole(it) and it >= 1,
        "a whole number of at least 1",
    ),
    (
        ("num_return_sequences", "num_beams"),
        lambda it: _is_whole(it) and 1 <= it <= MOST_ROWS,
        f"a whole number from 1 to {MOST_ROWS}",
    ),
    (
        ("top_k",),
        lambda it: _is_whole(it) and it >= 0,
        "a whole number of at least 0; 0 is off",
    ),
    (
        ("temperature",),
        lambda it: _is_real(it) and it > 0,
        "a number above 0; for greedy decoding set `do_sample=False`",
    ),
    (("guidance_scale",), _is_real, "a finite number"),
    (("eos_token_id",), _are_ids, "a token id or a list of token ids"),
)


TYPES: tuple[Rule, ...] = (
    (
        (
            *("do_sample", "use_cache", "low_memory", "token_healing"),
            *("renormalize_logits", "remove_invalid_values"),
        ),
        lambda it: isinstance(it, bool),
        "True or False",
    ),
    (
        ("early_stopping",),
        lambda it: isinstance(it, bool) or isinstance(it, str) and it == "never",
        'True, False or "never"',
    ),
    (("min_p", "top_h", "diversity_penalty", "penalty_alpha"), _is_real, "a finite number"),
    (
        ("pad_token_id",),
        lambda it: hasattr(it, "tolist") or isinstance(it, int) and not isinstance(it, bool),
        "a token id",
    ),
)
"""What is compared or taken for true before anybody looks at its type."""


def check_types(given: Mapping[str, Any]) -> None:
    """Refuse what would be reinterpreted in silence, or fail under another name.

    Args:
        given: Fields of ``GenerationConfig`` that a request itself gave.

    Raises:
        InvalidRequestError: Names the field, its value and what is allowed.
    """
    for names, accepts, allowed in TYPES:
        for name in names:
            value = given.get(name)
            if value is not None and not accepts(value):
                raise InvalidRequestError(name, value, allowed)


def check_values(config: object) -> None:
    """Refuse values out of range.

    Args:
        config: Has the fields of ``GenerationConfig`` as attributes; ``None`` is not given.

    Raises:
        InvalidRequestError: Names the field, its value and what is allowed.
    """
    for names, accepts, allowed in RULES:
        for name in names:
            value = getattr(config, name, None)
            if value is not None and not accepts(value):
                raise InvalidRequestError(name, value, allowed)
    stops = getattr(config, "stop_strings", None)
    if not isinstance(stops, str | list | tuple | None):
        raise InvalidRequestError("stop_strings", stops, "a non-empty string or a list of them")
    check_stops("stop_strings", stops if isinstance(stops, list | tuple) else [stops])


def check_count(name: str, value: object) -> None:
    """Refuse what is no number of samples.

    Args:
        name: Name of the parameter.
        value: What was given.

    Raises:
        InvalidRequestError: It is no whole number from 1 to `MOST_ROWS`.
    """
    if not _is_whole(value) or not 1 <= value <= MOST_ROWS:  # type: ignore[operator]
        raise InvalidRequestError(name, value, f"a whole number from 1 to {MOST_ROWS}")


def check_text(name: str, texts: Iterable[object]) -> None:
    """Refuse half characters, which no text holds: what waits for one would wait for ever.

    Args:
        name: Name of the parameter.
        texts: Its strings; what is no string is left to others.

    Raises:
        InvalidRequestError: Names the parameter and the place.
    """
    for text in texts:
        if not isinstance(text, str):
            continue
        try:
            text.encode()
        except UnicodeEncodeError as error:
            allowed = f"no Unicode text: a lone surrogate at position {error.start}"
            raise InvalidRequestError(name, text, allowed) from None


def check_stops(name: str, stops: Sequence[object]) -> None:
    """Refuse stop strings that no text holds, and more of them than a step has time for.

    Args:
        name: Name of the parameter.
        stops: Its strings; what is no string is left to others.

    Raises:
        InvalidRequestError: Names the parameter, and what is wrong.
    """
    length = sum(len(stop) for stop in stops if isinstance(stop, str))
    if length > MOST_STOP_CHARACTERS:
        allowed = f"{length} characters in all; at most {MOST_STOP_CHARACTERS}"
        raise InvalidRequestError(name, stops, allowed)
    check_text(name, stops)


def check_callables(name: str, arguments: Mapping[str, Any]) -> list[Callable[..., Any]]:
    """Check a list of processors or criteria that the user wrote.

    Args:
        name: Name of the argument.
        arguments: Where it may be.

    Returns:
        The list, empty where none was given.

    Raises:
        InvalidRequestError: It is no list, or holds something that cannot be called.
    """
    given = arguments.get(name, [])
    if not isinstance(given, list) or not all(map(callable, given)):
        raise InvalidRequestError(name, given, "a list of callables")
    return given
