"""Answers one request for embeddings: one vector a text, in one piece."""

from __future__ import annotations

import sys
from array import array
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import anyio.from_thread

from asyncgen import AsyncgenError
from asyncgen_apps.openai_http.cancellable_response import CancellableResponse
from asyncgen_apps.openai_http.concurrency_limit import ReplyBytes
from asyncgen_apps.openai_http.errors import from_exception
from asyncgen_apps.openai_http.response_writer import encode
from asyncgen_apps.openai_http.translate import one_by_one
from asyncgen_apps.serving.time_slices import give_way, slices

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen import Embedding
    from asyncgen_apps.engine import Engine
    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.request_schema import EmbeddingRequest
    from asyncgen_apps.openai_http.response_writer import ResponseWriter
    from asyncgen_apps.openai_http.settings import ServerSettings


EMBED_PATH = "/v1/embeddings"
PARAMETERS = ("pooling", "normalize", "dimensions", "prompt_name", "priority", "cache_salt")

_BYTES_OF_A_TEXT = 4096
"""What is kept of each text until its vector is written, and of the vector: about that."""

_FEW_TEXTS = 4
"""Texts whose vectors are written at once; more are written beside the event loop, in slices."""

NAMES = {"prompt": "input"}
"""What the client calls a parameter of the engine."""


class EmbeddingsResponse(CancellableResponse):
    """The reply to one request, computed while it is sent."""

    def __init__(
        self, llm: Engine, gate: Gate, settings: ServerSettings, body: EmbeddingRequest
    ) -> None:
        """Describe the reply; nothing runs before it is called.

        Args:
            llm: The engine.
            gate: Lets it in.
            settings: For the times of patience.
            body: Checked body of the request.

        Raises:
            ApiError: A text is empty.
        """
        given = {name: getattr(body, name) for name in PARAMETERS}
        self._params = {name: value for name, value in given.items() if value is not None}
        self._texts: Any = one_by_one("input", body.input)
        super().__init__(
            gate,
            settings,
            streams=False,
            prioritises="priority" in self._params,
            names=NAMES,
            rows=len(self._texts),
        )
        self._llm = llm
        self._model = body.model
        self._spell = _base64 if body.encoding_format == "base64" else _numbers

    async def compute(self, reply: ResponseWriter) -> None:
        """Embed the texts and write their vectors."""
        budget, remedy = self._gate.reply_bytes, "try again, or ask for fewer at once"
        with ReplyBytes(budget, self._client.id, "vectors", remedy) as kept:
            kept.add(_BYTES_OF_A_TEXT * len(self._texts))
            found = await self._embedded()
            if len(found) > _FEW_TEXTS:
                parts = await self.on_thread(self._written_in_slices, found)
            else:
                parts = self._written(found)
            kept.add(sum(map(len, parts)))
            await reply.parts(parts)

    async def _embedded(self) -> list[Embedding]:
        """Embed the texts."""
        params: Any = self._client.marked(self._params)
        try:
            return await self._llm.embed(self._texts, **params)
        except AsyncgenError as error:
            api_error = from_exception(error, NAMES)
            if len(self._texts) > 1:  # the engine has noted which one it was
                api_error.message = "; ".join([api_error.message, *getattr(error, "__notes__", ())])
            raise api_error from error

    def _written_in_slices(self, found: Sequence[Embedding]) -> list[bytes]:
        with slices(anyio.from_thread.check_cancelled):
            return self._written(found)

    def _written(self, found: Sequence[Embedding]) -> list[bytes]:
        """Return the reply, in parts."""
        parts = [b'{"object":"list","data":[']
        for one in found:
            parts.append(("," * (one.index > 0) + self._item(one)).encode())
            give_way()  # thousands of numbers each
        tokens = sum(one.usage.prompt_tokens for one in found)
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        rest = encode({"model": self._model, "usage": usage})
        return [*parts, f"],{rest[1:]}".encode()]

    def _item(self, one: Embedding) -> str:
        spelled = self._spell(one)
        return f'{{"object":"embedding","index":{one.index},"embedding":{spelled}}}'


def _numbers(one: Embedding) -> str:
    return encode(one.vector.tolist())


def _base64(one: Embedding) -> str:
    """Little-endian float32, as the API has it."""
    numbers = array("f", one.vector.tolist())
    if sys.byteorder == "big":
        numbers.byteswap()
    return f'"{b64encode(numbers).decode()}"'
