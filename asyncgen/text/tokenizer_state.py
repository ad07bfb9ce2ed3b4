"""Check what a ``tokenizer.json`` describes before the library is given it.

The file may come from anybody. Its steps may lengthen a text up to a bound, its regular expressions
take no longer than a text is, and the same text always has the same tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from asyncgen.checkpoints.charsmap import check_charsmap
from asyncgen.checkpoints.json_size import check_json
from asyncgen.checkpoints.tokenizer_sizes import check_added
from asyncgen.errors import ModelLoadError, clip, shorten
from asyncgen.runtime.wanted import require_wanted
from asyncgen.text.known_patterns import KNOWN_PATTERNS
from asyncgen.text.pattern_trial import seconds_of, trouble_of
from asyncgen.text.text_growth import charsmap_of, check_growth
from asyncgen.text.tokenizer_model_checks import check_backend, check_model
from asyncgen.text.tokenizer_parts import CHAINS, check_parts, kind_of, parts_of
from asyncgen.text.tokenizer_work import squares_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from tokenizers import Tokenizer as Backend

MOST_STEPS: Final = 256
"""Steps of a tokenizer; those of real ones are less than 20."""

MOST_TRIED: Final = 16
"""Different regular expressions of a tokenizer that no known model has; each is tried once."""

MOST_TRIAL: Final = 3.0
"""Seconds of the processor that trials of all of them may take; one takes about a third."""

MOST_LISTS: Final = 1_500_000
MOST_ENTRIES: Final = 4_000_000
"""Brackets and commas of a file, which cost memory whatever is between them; the largest have
520,000 lists, of merges, and 1,400,000 commas."""


def read_state(file: Path, text: str) -> tuple[dict[str, Any], str]:
    """Parse a ``tokenizer.json`` and check it.

    Args:
        file: The file, for messages.
        text: Its content.

    Returns:
        What it says, and the text of that for the library: no key stands in it twice, and every
        part says its type, so that the library reads what was checked.

    Raises:
        ModelLoadError: It is no JSON object, or describes what is refused.
    """
    check_json(file, text, MOST_LISTS, MOST_ENTRIES)
    try:
        state = json.loads(text, object_pairs_hook=_with_distinct_keys)
        require_wanted()
        if not isinstance(state, dict):
            raise ValueError(f"it holds a {type(state).__name__}")
        is_changed = check_state(file, state)
    except (ValueError, RecursionError) as error:
        reason = clip(str(error), 300)
        raise ModelLoadError(
            f"{file} is not a tokenizer file ({reason}); download it again"
        ) from error
    return state, json.dumps(state) if is_changed else text


def _with_distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Build an object; of a key that stands twice, each reader takes another value."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counts = Counter(key for key, _ in pairs)
        twice = next(key for key, count in counts.items() if count > 1)
        raise ValueError(f"the key {shorten(twice)} stands twice in an object")
    return found


def check_steps(place: object, backend: Backend) -> None:
    """Check the steps of a tokenizer that was built of other files; errors as `check_state`.

    Args:
        place: The file or folder, for messages.
        backend: The tokenizer.
    """
    steps = {chain: getattr(backend, chain) for chain in CHAINS}
    check_state(
        place,
        {chain: json.loads(step.__getstate__()) for chain, step in steps.items() if step},
    )
    check_backend(place, backend)


def steps_of(backend: Backend) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the steps of a tokenizer with the names of their chains."""
    found: list[tuple[str, Mapping[str, Any]]] = []
    for chain in CHAINS:
        try:
            step = getattr(backend, chain)
            state = json.loads(step.__getstate__()) if step else None
        except Exception:  # a step that is written in Python has no description
            continue
        found += [(chain, part) for part in parts_of(state)]
    return found


def check_state(place: object, state: Mapping[str, Any]) -> bool:
    """Refuse steps, expressions and models that hang, grow without measure, or are random.

    Args:
        place: The file, for messages.
        state: Content of ``tokenizer.json``, or those parts of it that there are; parts without a
            type get it.

    Returns:
        Whether a part got its type here.

    Raises:
        ModelLoadError: Names the part.
    """
    added = state.get("added_tokens")
    if isinstance(added, list):
        check_added(place, len(added))
    steps = [(chain, part) for chain in CHAINS for part in parts_of(state.get(chain))]
    if len(steps) > MOST_STEPS:
        raise ModelLoadError(
            f"{place}: its chains have {len(steps)} steps; at most {MOST_STEPS} are read"
        )
    is_changed = check_parts(place, state)
    check_model(place, state)
    texts = [token.get("content") or "" for token in added or ()]
    check_added(place, len(texts), sum(map(len, texts)))
    for _, part in steps:
        if kind_of(part) == "Precompiled":
            check_charsmap(f"{place}", charsmap_of(part))
    check_growth(place, state)
    squares_of(place, steps)
    _check_patterns(place, dict(_patterns(steps)))
    return is_changed


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
    seconds = 0.0
    for pattern in unknown:
        if seconds > MOST_TRIAL:
            raise ModelLoadError(
                f"{place}: its {len(unknown)} regular expressions that no known model has take too "
                f"long to be tried: {seconds:.1f} s of the processor for some of them, at most "
                f"{MOST_TRIAL:g} for all"
            )
        trouble = trouble_of(pattern)
        if trouble is not None:
            raise ModelLoadError(
                f"{place}: the regular expression {shorten(pattern)} of the step "
                f"{patterns[pattern]} is refused: {trouble}; use one whose time grows as the text"
            )
        seconds += seconds_of(pattern)
