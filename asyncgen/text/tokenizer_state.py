"""Check what a ``tokenizer.json`` describes before the library is given it.

The file may come from anybody. Its steps may lengthen a text up to a bound, its regular expressions
take no longer than a text is, and the same text always has the same tokens.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

from asyncgen.errors import ModelLoadError, clip, shorten
from asyncgen.text.known_patterns import KNOWN_PATTERNS
from asyncgen.text.pattern_trial import trouble_of
from asyncgen.text.text_growth import check_growth, kind_of, parts_of
from asyncgen.text.tokenizer_work import check_frame, check_model, squares_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer as Backend

MOST_STEPS: Final = 256
"""Steps of a tokenizer; those of real ones are less than 20."""

MOST_TRIED: Final = 16
"""Different regular expressions of a tokenizer that no known model has; each is tried once."""

_CHAINS: Final = ("normalizer", "pre_tokenizer", "post_processor", "decoder")


def read_state(file: Path, text: str) -> dict[str, Any]:
    """Parse a ``tokenizer.json`` and check it.

    Args:
        file: The file, for messages.
        text: Its content.

    Raises:
        ModelLoadError: It is no JSON object, or describes what is refused.
    """
    try:
        state = json.loads(text)
        if not isinstance(state, dict):
            raise ValueError(f"it holds a {type(state).__name__}")
        check_state(file, state)
    except (ValueError, RecursionError) as error:
        reason = clip(str(error), 300)
        raise ModelLoadError(
            f"{file} is not a tokenizer file ({reason}); download it again"
        ) from error
    return state


def check_steps(place: object, backend: Backend) -> None:
    """Check the steps of a tokenizer that was built of other files; errors as `check_state`.

    Args:
        place: The file or folder, for messages.
        backend: The tokenizer.
    """
    steps = {chain: getattr(backend, chain) for chain in _CHAINS}
    check_state(
        place,
        {chain: json.loads(step.__getstate__()) for chain, step in steps.items() if step},
    )


def steps_of(backend: Backend) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the steps of a tokenizer with the names of their chains."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for chain in _CHAINS:
        try:
            step = getattr(backend, chain)
            state = json.loads(step.__getstate__()) if step else None
        except Exception:  # a step that is written in Python has no description
            continue
        found += [(chain, part) for part in parts_of(state)]
    return found


def check_state(place: object, state: Mapping[str, Any]) -> None:
    """Refuse steps, expressions and models that hang, grow without measure, or are random.

    Args:
        place: The file, for messages.
        state: Content of ``tokenizer.json``, or those parts of it that there are.

    Raises:
        ModelLoadError: Names the part.
    """
    _check_model(place, state.get("model"))
    steps = [(chain, part) for chain in _CHAINS for part in parts_of(state.get(chain))]
    if len(steps) > MOST_STEPS:
        raise ModelLoadError(
            f"{place}: its chains have {len(steps)} steps; at most {MOST_STEPS} are read"
        )
    _check_patterns(place, dict(_patterns(steps)))
    check_growth(place, state)
    squares_of(place, steps)
    check_frame(place, parts_of(state.get("post_processor")))


def _check_model(place: object, model: object) -> None:
    if not isinstance(model, dict):
        return  # the library refuses it
    dropout = model.get("dropout")
    if dropout is not None and dropout != 0:
        raise ModelLoadError(
            f"{place}: `dropout` of its model is {shorten(dropout)}: null or 0, since with it a "
            "text has other tokens each time; it belongs to training, set it to null"
        )
    check_model(place, model)


def _patterns(steps: Sequence[tuple[str, Mapping[str, Any]]]) -> Iterator[tuple[str, str]]:
    """Yield regular expressions and the steps that have them."""
    for chain, part in steps:
        pattern = part.get("pattern")
        regex = pattern.get("Regex") if isinstance(pattern, dict) else None
        if isinstance(regex, str):
            yield regex, f"{kind_of(part)[:80]!r} of `{chain}`"


def _check_patterns(place: object, patterns: Mapping[str, str]) -> None:
    unknown = [pattern for pattern in patterns if pattern not in KNOWN_PATTERNS]
    if len(unknown) > MOST_TRIED:
        raise ModelLoadError(
            f"{place}: it has {len(unknown)} regular expressions that no known model has; at most "
            f"{MOST_TRIED} are tried"
        )
    for pattern in unknown:
        trouble = trouble_of(pattern)
        if trouble is not None:
            raise ModelLoadError(
                f"{place}: the regular expression {shorten(pattern)} of the step "
                f"{patterns[pattern]} is refused: {trouble}; use one whose time grows as the text"
            )
