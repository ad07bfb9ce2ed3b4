"""Lay out and encode a whole reply of many megabytes in short turns of the event loop.

Log-probabilities are most of such a reply. Those of an event are encoded when it is read and kept
as text only: as objects they take ten times the memory, and garbage collection looks at each. All
other fields are encoded at the end, one by one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Self

import anyio

from asyncgen_apps.openai_http.bodies import check_whole
from asyncgen_apps.openai_http.concurrency_limit import ReplyBytes
from asyncgen_apps.openai_http.errors import ApiError
from asyncgen_apps.openai_http.response_writer import encode
from asyncgen_apps.serving.limits import MOST_REPLY
from asyncgen_apps.serving.time_slices import BYTES_OF_A_TURN

if TYPE_CHECKING:
    from collections.abc import Awaitable, Iterator, Mapping

    from asyncgen import TokenEvent
    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.request_streams import RequestStreams
    from asyncgen_apps.openai_http.serializers import Serializer
    from asyncgen_apps.serving.time_slices import LoopTurns

    Lists = dict[str, bytearray]
    """Entries of each list of an object, encoded, with commas between them."""

_GROUP = 4096
"""Numbers that are encoded in one call."""


@dataclass(frozen=True, slots=True)
class EncodedList:
    """List whose entries are encoded already.

    Attributes:
        parts: Entries with commas between them; no part is empty.
    """

    parts: tuple[bytearray, ...]


class LargeReply:
    """Reply to one request, gathered from its events; its bytes count in a ``with`` block."""

    def __init__(
        self, streams: RequestStreams, serializer: Serializer, gate: Gate, client: str
    ) -> None:
        """Describe it.

        Args:
            streams: Entered; their results keep no log-probabilities.
            serializer: Lays the reply out.
            gate: Counts the bytes of all replies, and has the turns of this loop.
            client: Name of the client.
        """
        self._streams = streams
        self._serializer = serializer
        self._turns = gate.turns
        self._on_thread = partial(gate.threads.run, client)
        self._has_turn = anyio.Lock(fast_acquire=True)  # so that many streams wait as one reply
        self._prompts: dict[int, Lists] = {}
        self._choices: dict[int, Lists] = {}
        remedy = "try again, or ask for a stream (`stream: true`)"
        self._bytes = ReplyBytes(gate.reply_bytes, client, "log-probabilities", remedy)

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Give the memory back."""
        self._bytes.give_back()

    async def read(self) -> list[bytes | bytearray]:
        """Read all streams to their ends; return the reply in parts.

        Raises:
            ApiError: It is too large, all replies together are, or the engine was closed meanwhile.
            Exception: The first stream to fail raised it.
        """
        streams, echo = self._streams, self._serializer.echo
        if echo is not None:
            await self._on_thread(echo.begin, streams.prompt_ids, streams.tokenizer)
        await streams.read(self._take)
        # As long as its texts are: not in the event loop.
        content = await self._on_thread(self._lay_out)
        return await encode_in_turns(content, self._turns)

    def _take(self, index: int, event: TokenEvent) -> Awaitable[None] | None:
        """Take an event; return what takes its log-probabilities."""
        check_whole(index, event)
        return self._take_logprobs(index, event) if self._serializer.logprobs else None

    async def _take_logprobs(self, index: int, event: TokenEvent) -> None:
        """Encode the log-probabilities of an event, and of a prompt for all of its choices."""
        echo, own = self._serializer.echo, self._choices.setdefault(index, {})
        async with self._has_turn:
            if echo is not None and event.prompt_logprobs is not None:
                number = echo.number(index)
                if number not in self._prompts:
                    lists = self._prompts[number] = {}
                    echo.learn(number, event.prompt_logprobs)
                    for chunk in self._serializer.prompt(index):
                        async with self._turns as turn:
                            turn.spend(self._add(lists, chunk))
                    echo.forget(number)
            async with self._turns as turn:
                turn.spend(self._add(own, self._serializer.chunk(index, event)))

    def _add(self, lists: Lists, chunk: Mapping[str, Any]) -> int:
        """Add the log-probabilities of a chunk at the ends of lists; return their bytes."""
        added = 0
        for name, value in (chunk["choices"][0]["logprobs"] or {}).items():
            if isinstance(value, list) and value:
                found = lists.setdefault(name, bytearray())
                before = len(found)
                found += b"," * (before > 0) + encode(value)[1:-1].encode()
                added += len(found) - before
        self._bytes.add(added)
        if self._bytes.count > MOST_REPLY:
            message = (
                f"the reply has more than {MOST_REPLY >> 20} MiB of log-probabilities: "
                "ask for a stream (`stream: true`), or for less of them"
            )
            raise ApiError(400, message, param="logprobs", code="reply_too_large")
        return added

    def _lay_out(self) -> Mapping[str, object]:
        """Lay the reply out, with encoded lists in place of its log-probabilities."""
        streams, serializer = self._streams, self._serializer
        prompt_ids = streams.prompt_ids if serializer.token_ids else []
        content: Any = serializer.whole(prompt_ids, streams.samples(), streams.usage())
        for choice in content["choices"]:
            index = choice["index"]
            number = -1 if serializer.echo is None else serializer.echo.number(index)
            sources = self._prompts.get(number, {}), self._choices.get(index, {})
            for name, value in (choice["logprobs"] or {}).items():
                if isinstance(value, list):
                    found = tuple(lists[name] for lists in sources if name in lists)
                    choice["logprobs"][name] = EncodedList(found)
        return content


async def encode_in_turns(content: object, turns: LoopTurns) -> list[bytes | bytearray]:
    """Encode JSON of any length in short turns of the event loop; return its parts.

    Args:
        content: JSON; may hold `EncodedList`.
        turns: Turns of this loop.
    """
    parts: list[bytes | bytearray] = []
    pieces = encoded(content)
    is_whole = False
    while not is_whole:
        async with turns as turn:
            num_bytes = 0
            while num_bytes < BYTES_OF_A_TURN and not is_whole:
                part = next(pieces, None)
                is_whole = part is None
                if part is not None:
                    parts.append(part)
                    num_bytes += len(part)
            turn.spend(num_bytes)
    return parts


def encoded(value: object) -> Iterator[bytes | bytearray]:
    """Encode a value piece by piece, as `encode` does in one.

    Args:
        value: JSON; may hold `EncodedList`.
    """
    if isinstance(value, dict):
        mark = "{"
        for name, entry in value.items():
            yield f"{mark}{encode(name)}:".encode()
            yield from encoded(entry)
            mark = ","
        yield b"}" if value else b"{}"
    elif isinstance(value, EncodedList):
        for number, part in enumerate(value.parts):
            yield b"," if number else b"["
            yield part
        yield b"]" if value.parts else b"[]"
    elif isinstance(value, list) and value:
        size = 1 if isinstance(value[0], dict) else _GROUP
        for start in range(0, len(value), size):
            yield b"," if start else b"["
            if size == 1:
                yield from encoded(value[start])
            else:
                yield encode(value[start : start + size])[1:-1].encode()
        yield b"]"
    else:
        yield encode(value).encode()
