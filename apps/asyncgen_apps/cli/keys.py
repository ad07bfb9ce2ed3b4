"""Keep the keys of a terminal from the screen while an answer is drawn on it."""

from __future__ import annotations

import sys
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def keys_unseen() -> Iterator[None]:
    """Have the terminal show no key while the block runs; what is typed waits for who reads next.

    A key that shows itself, such as ``^C``, moves the cursor below the feet of who redraws lines,
    and each line would then stand twice. Ctrl-C stays a signal. Without a terminal, and on Windows,
    where only a prompt shows keys, there is nothing to do.
    """
    try:
        import termios
    except ImportError:
        yield
        return
    try:
        terminal = sys.stdin.fileno()
        before = termios.tcgetattr(terminal)
    except (OSError, ValueError, AttributeError, termios.error):
        yield
        return
    unseen = [*before]
    # Without NOFLSH, Ctrl-C throws away what is typed, and output that is not on the screen yet.
    unseen[3] = before[3] & ~(termios.ECHO | termios.ICANON) | termios.NOFLSH
    termios.tcsetattr(terminal, termios.TCSANOW, unseen)
    try:
        yield
    finally:
        with suppress(termios.error):  # the terminal may be gone
            termios.tcsetattr(terminal, termios.TCSANOW, before)
