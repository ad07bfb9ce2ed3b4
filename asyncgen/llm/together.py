"""Many prompts that one thread waits for: they share the batch, and come back in their order."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeGuard

from asyncgen.engine.output.events import is_last
from asyncgen.errors import OverloadedError
from asyncgen.llm.preparing import MOST_AT_ONCE
from asyncgen.llm.reader_wait import InThread
from asyncgen.runtime.progress import Progress
from asyncgen.types import NEVER_IDS, check_prompt
from streamers import ThreadMailbox, get_interruptibly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from concurrent.futures import Future

    from asyncgen.llm.reader_wait import Letter
    from asyncgen.llm.stream import SyncTextStream
    from asyncgen.runtime.progress import ProgressOption
    from asyncgen.types import Completion, Prompt


def is_prompts(prompt: Prompt | Sequence[Prompt]) -> TypeGuard[Sequence[Prompt]]:
    """Tell whether this is a list of prompts: texts, lists of messages or lists of ids."""
    return (
        isinstance(prompt, Sequence)
        and not isinstance(prompt, NEVER_IDS)
        and len(prompt) > 0
        and isinstance(prompt[0], Sequence)
    )


def answer_all(
    prompts: Sequence[Prompt],
    start: Callable[[Prompt, InThread], SyncTextStream],
    *,
    at_once: int,
    progress: ProgressOption = None,
) -> list[Completion]:
    """Answer prompts together.

    Args:
        prompts: At least one.
        start: Makes a stream that waits as it is told.
        at_once: Most streams that are open at a time, at least 1.
        progress: How many have ended: a bar, nothing, or what is called.

    Returns:
        Their completions, in order.

    Raises:
        AsyncgenError: What the first raised that failed, noted with its place; the others are
            cancelled.
    """
    for place, prompt in enumerate(prompts):
        with noted(place):
            check_prompt(prompt)
    ended: queue.SimpleQueue[int] = queue.SimpleQueue()
    found: dict[int, Completion] = {}
    running: dict[int, tuple[SyncTextStream, Future[SyncTextStream]]] = {}
    waiting = deque(range(len(prompts)))
    # One after the other, the prompts would be made ready more slowly than they are answered.
    helpers = ThreadPoolExecutor(MOST_AT_ONCE, "asyncgen-list")

    def begin(place: int) -> None:
        tell = partial(ended.put, place)
        stream = start(prompts[place], _Counted(tell))
        begun = helpers.submit(stream.__enter__)
        running[place] = stream, begun
        begun.add_done_callback(lambda _: tell() if _has_failed(begun) else None)

    try:
        with Progress(len(prompts), "answering prompts", unit="prompt", progress=progress) as bar:
            while len(found) < len(prompts):
                while waiting and len(running) < at_once:
                    begin(waiting.popleft())
                place = get_interruptibly(ended)
                if place not in running:  # told twice: it was posted while the engine was closed
                    continue
                stream, begun = running.pop(place)
                try:
                    with noted(place):
                        found[place] = _read(stream, begun)
                except OverloadedError:
                    if not running:
                        raise
                    waiting.appendleft(place)
                    at_once = len(running)  # there is no room for more
                else:
                    bar.advance(1)
    finally:
        for stream, _ in running.values():
            stream.close()
        helpers.shutdown(cancel_futures=True)
    return [found[each] for each in range(len(prompts))]


def _has_failed(begun: Future[SyncTextStream]) -> bool:
    return not begun.cancelled() and begun.exception() is not None


def _read(stream: SyncTextStream, begun: Future[SyncTextStream]) -> Completion:
    """The result of a stream whose events are all there, or what it raised when it began."""
    begun.result()
    for _ in stream.events():
        pass
    return stream.result


@contextmanager
def noted(place: int) -> Iterator[None]:
    """Note on an error of the block the prompt that it was for."""
    try:
        yield
    except Exception as error:
        error.add_note(f"it is prompt {place} of the list (from 0)")
        raise


class _Counted(InThread):
    """Tells when the last event has come."""

    def __init__(self, ended: Callable[[], None]) -> None:
        self._ended = ended

    def inbox(self, on_gone: Callable[[], None]) -> ThreadMailbox[Letter]:
        return _CountedMailbox(self._ended)


class _CountedMailbox(ThreadMailbox["Letter"]):
    def __init__(self, ended: Callable[[], None]) -> None:
        super().__init__()
        self._ended = ended

    def put_nowait(self, item: Letter) -> bool:
        taken = super().put_nowait(item)
        if is_last(item):
            self._ended()
        return taken
