"""Answers requests for the tokens of a text, and for the text of tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import anyio.to_thread

from asyncgen import PromptParams
from asyncgen_apps.openai_http.cancellable_response import CancellableResponse
from asyncgen_apps.openai_http.errors import ApiError
from asyncgen_apps.openai_http.large_replies import encode_in_turns
from asyncgen_apps.openai_http.translate import conversation

if TYPE_CHECKING:
    from asyncgen_apps.engine import Engine
    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.request_schema import DetokenizeRequest, TokenizeRequest
    from asyncgen_apps.openai_http.response_writer import ResponseWriter
    from asyncgen_apps.openai_http.settings import ServerSettings


TOKENIZE_PATH, DETOKENIZE_PATH = "/tokenize", "/detokenize"
_NAMES = {"prompt": "prompt"}


class TokenizeResponse(CancellableResponse):
    """The ids of a prompt."""

    def __init__(
        self, llm: Engine, gate: Gate, settings: ServerSettings, body: TokenizeRequest
    ) -> None:
        """Describe the reply; nothing runs before it is called.

        Raises:
            ApiError: There is no prompt, or two.
        """
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either `prompt` or `messages`", param="prompt")
        super().__init__(gate, settings, streams=False, prioritises=False, names=_NAMES)
        self._llm = llm
        self._prompt: Any = body.prompt if body.messages is None else conversation(body.messages)
        said = {name: getattr(body, name, None) for name in PromptParams.__annotations__}
        self._params = {name: value for name, value in said.items() if value is not None}
        if body.tools is not None:
            self._params["tools"] = [tool.model_dump(exclude_none=True) for tool in body.tools]

    async def compute(self, reply: ResponseWriter) -> None:
        """Tokenize, and write the ids."""
        prompt, params = self._prompt, cast("PromptParams", self._params)
        ids = await self._llm.tokenize(prompt, **params) if prompt else []
        most = getattr(self._llm.config, "max_position_embeddings", None)
        content = {"count": len(ids), "max_model_len": most, "tokens": ids}
        await reply.parts(await encode_in_turns(content, self._gate.turns))


class DetokenizeResponse(CancellableResponse):
    """The text of ids."""

    def __init__(
        self, llm: Engine, gate: Gate, settings: ServerSettings, body: DetokenizeRequest
    ) -> None:
        """Describe the reply; nothing runs before it is called.

        Raises:
            ApiError: An id that is none.
        """
        size = cast("Any", llm.config).vocab_size
        wrong = next((one for one in body.tokens if not 0 <= one < size), None)
        if wrong is not None:
            message = f"`tokens` has {wrong}: token ids are from 0 to {size - 1}"
            raise ApiError(400, message, param="tokens")
        super().__init__(gate, settings, streams=False, prioritises=False, names={})
        self._llm, self._ids = llm, body.tokens

    async def compute(self, reply: ResponseWriter) -> None:
        """Decode, on a thread, and write the text."""
        text = await anyio.to_thread.run_sync(self._llm.tokenizer.decode, self._ids)
        await reply.whole({"prompt": text})
