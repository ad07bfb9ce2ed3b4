"""Feed a streamer with the tokens of a request, on the decode thread.

The documented streamers and those of users (`put` and `end`) get the prompt, then the ids of each
step, then the end, as from `model.generate`. The events of the request go on to its reader.
"""

from __future__ import annotations

import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from asyncgen.errors import InvalidRequestError, class_module
from asyncgen.llm.answer import Answer
from asyncgen.runtime.request_failure import request_failure
from asyncgen.runtime.streamer_check import check_streamer
from asyncgen.runtime.user_code import is_of_user, run_user_code
from streamers.cancel import Cancelled
from streamers.readable_streamer import ReadableStreamer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any

    from asyncgen.engine.requests.admission import Seat
    from asyncgen.engine.requests.request import Request
    from asyncgen.generation.generate.streamer_feed import Streamer, StreamerFeed
    from asyncgen.generation.stopping.cancel import CancelCriteria
    from asyncgen.llm.opening import Opened
    from asyncgen.llm.reader_wait import Inbox, Letter
    from asyncgen.types import Prompt, TokenEvent

    AnswerT = TypeVar("AnswerT", bound=Answer)


_KNOWN = sys.stdlib_module_names | {"tokenizers", "torch"}


@contextmanager
def feeding(streamer: Streamer | None) -> Iterator[Callable[[AnswerT], AnswerT]]:
    """Feed a streamer with the tokens of one stream, whose end is awaited inside the block.

    If the stream does not come to its start, the streamer's `fail` is called with the reason, where
    it has one, so that its reader does not wait in vain.

    Args:
        streamer: Gets the tokens; ``None`` for nobody.

    Yields:
        Function that connects a stream which has not begun, and returns it.

    Raises:
        InvalidRequestError: It is no streamer.
    """
    if streamer is None:
        yield lambda stream: stream
        return
    sink = StreamerSink(streamer)
    try:
        yield sink.connect
    except BaseException as error:
        if not sink.is_posted:
            sink.fail(error)
        raise
    finally:
        sink.disconnect()


class StreamerSink:
    """Sink of a request that hands its ids to a streamer before its events go to the reader.

    The streamer is a guest on the decode thread: what it raises ends its own request, and is
    raised to the reader. If its own readers have left (``streamer.cancelled``), the request ends.
    """

    def __init__(self, streamer: Streamer) -> None:
        """Keep the streamer; it gets nothing yet.

        Args:
            streamer: Gets the tokens.

        Raises:
            InvalidRequestError: It is no streamer.
        """
        check_streamer(streamer)
        self._streamer = streamer
        self._is_guarded = not _is_ours(streamer)
        self._stream: Answer | None = None
        self._request: Request | None = None
        self._inbox: Inbox | None = None
        self._feed: StreamerFeed | None = None
        self._is_over = False

    @property
    def is_posted(self) -> bool:
        """True if the decode thread has the request, and will end the streamer."""
        return self._stream is not None and self._stream._request is not None

    def connect(self, stream: AnswerT) -> AnswerT:
        """Be the sink of a stream that has not begun; return the stream."""
        self._stream = stream
        stream.prepare = self.prepare
        flag = getattr(self._streamer, "cancelled", None)
        if isinstance(flag, Cancelled):
            flag.on_set = stream.cancel  # also while it waits for its turn, or reads its prompt
            if flag:
                stream.cancel()
        return stream

    def disconnect(self) -> None:
        """Let the readers of the streamer leave without further notice."""
        flag = getattr(self._streamer, "cancelled", None)
        if isinstance(flag, Cancelled):
            flag.on_set = None

    def prepare(
        self,
        opened: Opened,
        prompt: Prompt,
        params: Mapping[str, Any],
        cancel: CancelCriteria,
        inbox: Inbox,
        place: Seat,
    ) -> Request:
        """Make the request of the stream, with this object as its sink; on a worker thread.

        Raises:
            InvalidRequestError: A parameter that changes what the streamer has got already.
        """
        self._inbox = inbox
        request = Answer.prepare(opened, prompt, params, cancel, self, place)
        for name, is_given in (
            ("generated_ids", bool(request.given)),
            ("token_healing", request.healing is not None),
        ):
            if is_given:
                allowed = "not beside `streamer`, which gets the prompt first and then new tokens"
                raise InvalidRequestError(name, params.get(name, True), allowed)
        self._request = request
        return request

    def put_nowait(self, item: Letter, /) -> bool:
        """Hand over the ids of an event, or an error, and pass it on; on the decode thread."""
        assert self._inbox is not None
        if self._is_over:
            return False
        if isinstance(item, BaseException):
            self.fail(item)
            return self._inbox.put_nowait(item)
        try:
            if self._is_guarded or not _is_ours(self._streamer):
                self._is_guarded = True  # from the first change on
                run_user_code(self._hand_over, item)
            else:
                self._hand_over(item)
        except BaseException as error:
            assert self._request is not None
            self._request.cancel.set()
            failure = request_failure(error)
            self.fail(failure)
            return self._inbox.put_nowait(failure)
        return self._inbox.put_nowait(item)

    def fail(self, error: BaseException) -> None:
        """Tell the streamer what ended the request, if it has a method for that."""
        self._is_over = True
        try:
            fail = run_user_code(getattr, self._streamer, "fail", None)
            if callable(fail):
                run_user_code(fail, error)
        except BaseException as second:
            request_failure(second)  # the reader is raised the first

    def _hand_over(self, event: TokenEvent) -> None:
        """Give the streamer the ids of an event."""
        from asyncgen.generation.strategies.step import Step

        request = self._request
        assert request is not None
        feed = self._feed or self._begin(request)
        is_cancelled = getattr(getattr(self._streamer, "cancelled", None), "is_set", None)
        if callable(is_cancelled) and is_cancelled():
            request.cancel.set()
        rows: list[list[int]] = [[] for _ in range(request.params.num_samples)]
        reasons: list[str | None] = [None for _ in rows]
        rows[event.index], reasons[event.index] = list(event.token_ids), event.finish_reason
        feed.step(Step(rows, reasons))
        if event.usage is not None:
            feed.end()

    def _begin(self, request: Request) -> StreamerFeed:
        """Give the streamer the prompt, a row for each sample."""
        from asyncgen.generation.generate.streamer_feed import StreamerFeed
        from asyncgen.runtime.transfer import host_ints

        pad = request.params.config.pad_token_id
        copies = request.params.num_samples
        self._feed = feed = StreamerFeed(self._streamer, copies=copies, pad_token_id=pad or 0)
        feed.begin(host_ints([request.starting_ids]))
        return feed


def _is_ours(streamer: Streamer) -> bool:
    """Tell whether a streamer runs no code but this library's: no class, method or tokenizer of a
    user, and no file that may be one, as where a `TextStreamer` prints.
    """
    if is_of_user(streamer) or not isinstance(streamer, ReadableStreamer):
        return False
    parts = {**vars(streamer)}
    tokenizer = parts.pop("tokenizer", None)
    replaced = [*parts.values(), *getattr(tokenizer, "__dict__", {}).values()]
    return not (
        is_of_user(tokenizer) or any(map(callable, replaced)) or any(map(_is_odd, replaced))
    )


def _is_odd(value: object) -> bool:
    """Tell whether a value of a streamer may run code of a user: its class is none of Python, of
    this library, or of the one that splits texts.
    """
    from asyncgen.runtime.plain_values import is_plain  # brings torch

    module = class_module(value).partition(".")[0]
    if module == "builtins":
        return not is_plain(value)
    return is_of_user(value) and module not in _KNOWN
