"""Many prompts that one thread waits for: they share the batch, and come back in their order."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeGuard
from weakref import ref

from asyncgen.engine.output.events import is_last
from asyncgen.errors import OverloadedError
from asyncgen.llm.preparing import MOST_AT_ONCE, no_thread
from asyncgen.llm.reader_wait import InThread
from asyncgen.runtime.beside import call_beside, run_to_end, start_thread
from asyncgen.runtime.progress import Progress
from asyncgen.runtime.request_failure import request_failure
from asyncgen.types import NEVER_IDS, check_prompt
from streamers import ThreadMailbox, get_interruptibly

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

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
        OverloadedError: There is no thread to start them on.
    """
    for place, prompt in enumerate(prompts):
        with noted(place):
            check_prompt(prompt)
    ended: queue.SimpleQueue[int | Exception] = queue.SimpleQueue()
    found: dict[int, Completion] = {}
    running: dict[int, _Begun] = {}
    waiting = deque(range(len(prompts)))
    starters = _Starters(ended.put)

    def begin(place: int) -> None:
        tell = partial(ended.put, place)
        stream = start(prompts[place], _Counted(tell))
        running[place] = starters.start(stream, tell)

    try:
        with Progress(len(prompts), "answering prompts", unit="prompt", progress=progress) as bar:
            while len(found) < len(prompts):
                while waiting and len(running) < at_once:
                    begin(waiting.popleft())
                told = get_interruptibly(ended)
                if isinstance(told, Exception):
                    raise no_thread(told)
                place = told
                if place not in running:  # told twice: it was posted while the engine was closed
                    continue
                begun = running.pop(place)
                try:
                    with noted(place):
                        found[place] = begun.read()
                except OverloadedError:
                    if not running:
                        raise
                    waiting.appendleft(place)
                    at_once = len(running)  # there is no room for more
                else:
                    bar.advance(1)
    finally:
        for begun in running.values():
            begun.stream.close()
        starters.close()
    return [found[each] for each in range(len(prompts))]


class _Begun:
    """A stream that a thread starts."""

    def __init__(self, stream: SyncTextStream, on_failure: Callable[[], None]) -> None:
        self.stream = stream
        self._on_failure = on_failure
        self._told: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()

    def start(self) -> None:
        """Start it; on the thread."""
        try:
            self.stream.__enter__()
        except BaseException as error:
            self._told.put(error)
            self._on_failure()
        else:
            self._told.put(None)

    def read(self) -> Completion:
        """The result of a stream whose events are all there, or what it raised when it began."""
        error = get_interruptibly(self._told)
        if error is not None:
            try:
                raise error
            finally:
                del error  # which holds this frame
        for _ in self.stream.events():
            pass
        return self.stream.result


class _Starters:
    """Threads that start streams: one after the other, the prompts would be made ready more slowly
    than they are answered. An executor's own locks do not outlast a Ctrl-C. They end with this.
    """

    def __init__(self, on_death: Callable[[Exception], None]) -> None:
        self._on_death = on_death
        self._inbox: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._num_threads = 0

    def start(self, stream: SyncTextStream, on_failure: Callable[[], None]) -> _Begun:
        """Start a stream soon; its failure is told."""
        begun = _Begun(stream, on_failure)
        if self._num_threads < MOST_AT_ONCE:
            self._num_threads += 1
            begun_thread: queue.SimpleQueue[None] = queue.SimpleQueue()
            # Code of C ends it, if all else fails.
            given = begun_thread, self._inbox, ref(self, self._inbox.put), self._on_death
            thread = threading.Thread(
                target=_start_streams, args=given, name="asyncgen-list", daemon=True
            )
            try:
                call_beside(partial(start_thread, thread, begun_thread))
            except RuntimeError as error:  # the system gives no thread, or none that lives
                self._num_threads -= 1
                if not self._num_threads:
                    raise no_thread(error) from error
        self._inbox.put(begun)
        return begun

    def close(self) -> None:
        """End the threads; streams that wait for one are closed, and so do not start."""
        for _ in range(self._num_threads):
            self._inbox.put(None)


def _start_streams(
    begun_thread: queue.SimpleQueue[None],
    inbox: queue.SimpleQueue[Any],
    end: ref[_Starters],
    on_death: Callable[[Exception], None],
) -> None:
    def work() -> None:
        begun_thread.put(None)
        while isinstance(begun := inbox.get(), _Begun):
            begun.start()
            del begun  # and the stream with it

    def leave(error: BaseException | None) -> None:
        if error is not None:
            on_death(request_failure(error))

    run_to_end(work, leave)


@contextmanager
def noted(place: int) -> Iterator[None]:
    """Note on an error of the block the prompt that it was for."""
    try:
        yield
    except Exception as error:
        with suppress(Exception):  # an error of a user's may not take one
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
