"""The command, with an engine that dies when its process is told to, and texts that hang.

A regular expression that panics, which would be refused, is let in.

A signal ``SIGUSR1`` has the next step of the engine fail; a prompt that begins with ``hang`` takes
:data:`HANG_SECONDS` to tokenize, like a regular expression that no thread can stop.
"""

from __future__ import annotations

import signal
import time

from asyncgen import Tokenizer
from asyncgen.engine.core import Engine
from asyncgen.text import pattern_trial, tokenizer_state
from asyncgen_apps.cli import main

HANG_SECONDS = 25
EXPLOSIVE = "(a+)+b$"
"""What makes the library panic at a few dozen times the letter ``a``."""


def make_mortal() -> None:
    """Change the engine and the tokenizer of this process."""
    encode = Tokenizer.encode_ids

    def die(engine: Engine) -> None:
        raise MemoryError("the engine was told to die")

    def end(number: int, frame: object) -> None:
        Engine.step = die  # type: ignore[assignment, method-assign]

    def hang(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
        if text.startswith("hang"):
            time.sleep(HANG_SECONDS)
        return encode(self, text, add_special_tokens)

    def trouble_of(pattern: str) -> str | None:
        return None if pattern == EXPLOSIVE else pattern_trial.trouble_of(pattern)

    setattr(tokenizer_state, "trouble_of", trouble_of)  # noqa: B010
    signal.signal(signal.SIGUSR1, end)
    Tokenizer.encode_ids = hang  # type: ignore[method-assign]


if __name__ == "__main__":
    make_mortal()
    main()
