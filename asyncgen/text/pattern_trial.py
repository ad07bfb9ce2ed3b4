"""Refuse regular expressions of strangers that take much longer for a text than it is long.

The library of `tokenizers` searches with backtracking, holds the interpreter meanwhile, and cannot
be stopped. So an expression that no known model has is tried once, in a process of its own that
can be ended, on long runs of each class of characters.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from functools import lru_cache
from pathlib import Path
from typing import Final

import tokenizers

from asyncgen.errors import ModelLoadError
from asyncgen.runtime.wanted import require_wanted

_PROCESS: Final = Path(__file__).with_name("pattern_trial_process.py")

MOST_SECONDS: Final = 30.0
"""Seconds of the whole trial, on a machine that has other things to do."""

_LOOK_SECONDS: Final = 0.1

MOST_CHARACTERS: Final = 20_000
"""Characters of an expression; the longest of a known model has 3,000."""


def trouble_of(pattern: str) -> str | None:
    """Say why an expression is refused; ``None``: it takes as long as a text is.

    Raises:
        ModelLoadError: No process can be started to try it.
    """
    if len(pattern) > MOST_CHARACTERS:
        return f"it has {len(pattern)} characters; at most {MOST_CHARACTERS} are tried"
    return _answer(pattern)[0]


def seconds_of(pattern: str) -> float:
    """Return the seconds of the processor that the trial of an expression took."""
    return _answer(pattern)[1]


@lru_cache(maxsize=1024)
def _answer(pattern: str) -> tuple[str | None, float]:
    """Try an expression, and again before it is refused: times are those of a busy machine.

    The answer is kept for the life of this process.
    """
    found = _tried(pattern)
    return found if found[0] is None else _tried(pattern)


def _tried(pattern: str) -> tuple[str | None, float]:
    command = [sys.executable, "-I", "-S", str(_PROCESS), str(Path(tokenizers.__file__).parents[1])]
    pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
    try:
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=nowhere) as process:
            try:
                written = _written(process, pattern.encode(errors="surrogatepass"))
            finally:
                process.kill()
    except subprocess.TimeoutExpired:
        return "a trial of it does not come to an end", 0.0
    except (OSError, ValueError, TypeError) as error:
        raise ModelLoadError(
            f"no process can be started to try a regular expression ({error}); give the model a "
            "tokenizer.json with expressions of known models only"
        ) from error
    answer, _, seconds = written.partition(b"\n")
    try:
        return json.loads(answer), float(seconds or 0)
    except ValueError:
        return "a trial of it takes more time or memory than it may", 0.0


def _written(process: subprocess.Popen[bytes], text: bytes) -> bytes:
    """Return what a process writes that is given a text, for as long as somebody waits for it."""
    ends, given = time.monotonic() + MOST_SECONDS, text or None
    while True:
        require_wanted()
        try:
            return process.communicate(given, timeout=_LOOK_SECONDS)[0]
        except subprocess.TimeoutExpired:
            given = None  # it is kept
            if time.monotonic() > ends:
                raise
