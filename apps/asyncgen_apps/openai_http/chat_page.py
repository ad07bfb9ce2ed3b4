"""Adapt the chat page to a server that has limits and a drain.

Its answers go through the gate as those of the API do, and its connections that never end by
themselves end with the server. Knows the page by what it asks of a model, and by one path.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

import anyio

from asyncgen import EngineClosedError, OverloadedError
from asyncgen_apps.openai_http.errors import ApiError
from asyncgen_apps.serving.clients import ANYBODY

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping, Sequence
    from types import TracebackType
    from typing import Unpack

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from asyncgen import (
        Completion,
        Embedding,
        EmbedParams,
        GenerationConfig,
        MetricsSnapshot,
        Prompt,
        PromptParams,
        StreamParams,
        TokenEvent,
        Tokenizer,
    )
    from asyncgen_apps.engine import Engine, EngineStream
    from asyncgen_apps.openai_http.concurrency_limit import Gate


HEARTBEAT = "/gradio_api/heartbeat/"


class GatedEngine:
    """An engine whose streams count as requests of the server."""

    def __init__(self, llm: Engine, gate: Gate) -> None:
        """Join them.

        Args:
            llm: An open engine.
            gate: Lets streams in.
        """
        self._llm = llm
        self._gate = gate

    @property
    def is_healthy(self) -> bool:
        """True if the engine is alive."""
        return self._llm.is_healthy

    @property
    def is_degraded(self) -> bool:
        """True if long texts are refused, because threads hang over others."""
        return self._llm.is_degraded

    @property
    def fingerprint(self) -> str | None:
        """Of the engine."""
        return self._llm.fingerprint

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return self._llm.tokenizer

    @property
    def config(self) -> object:
        """The model's configuration."""
        return self._llm.config

    @property
    def generation_config(self) -> GenerationConfig:
        """The model's own defaults."""
        return self._llm.generation_config

    async def count_tokens(self, prompt: Prompt, **params: Unpack[PromptParams]) -> int:
        """Count the tokens of a prompt."""
        return await self._llm.count_tokens(prompt, **params)

    async def tokenize(self, prompt: Prompt, **params: Unpack[PromptParams]) -> list[int]:
        """Tell the token ids of a prompt."""
        return await self._llm.tokenize(prompt, **params)

    async def apply_chat_template(
        self, messages: Sequence[Mapping[str, Any]], **params: Unpack[PromptParams]
    ) -> str:
        """Return messages as one text."""
        return await self._llm.apply_chat_template(messages, **params)

    async def embed(
        self, prompt: Sequence[str | Sequence[int]], **params: Unpack[EmbedParams]
    ) -> list[Embedding]:
        """Turn texts into vectors."""
        return await self._llm.embed(prompt, **params)

    async def measure(self) -> MetricsSnapshot:
        """Return the metrics of the engine."""
        return await self._llm.measure()

    def stream(self, prompt: Prompt, **params: Unpack[StreamParams]) -> GatedStream:
        """Answer a prompt."""
        return GatedStream(self._llm.stream(prompt, **params), self._gate, params.get("client"))


class GatedStream:
    """Stream that counts at the gate from its start to its end."""

    def __init__(self, stream: EngineStream, gate: Gate, client: str | None) -> None:
        """Wrap a stream of a client that has not started."""
        self._stream = stream
        self._gate = gate
        self._client = client or ANYBODY.id
        self._inside = ExitStack()
        self._is_aborted = False

    @property
    def result(self) -> Completion:
        """Everything generated; final when the stream has ended."""
        return self._stream.result

    @property
    def prompt_ids(self) -> list[int]:
        """Token ids of the prompt."""
        return self._stream.prompt_ids

    @property
    def position(self) -> tuple[int, ...]:
        """Tokens of each sample, as far as they were read."""
        return self._stream.position

    @property
    def seed(self) -> int:
        """Seed of its draws."""
        return self._stream.seed

    @property
    def prompt_progress(self) -> tuple[int, int, int, float] | None:
        """How far the prompt has been read."""
        return self._stream.prompt_progress

    def drop_logprobs(self) -> None:
        """Leave log-probabilities out of ``result``; call it before the first read."""
        self._stream.drop_logprobs()

    @property
    def is_separated(self) -> bool:
        """True if its events have more than text."""
        return self._stream.is_separated

    async def __aenter__(self) -> Self:
        """Start the request.

        Raises:
            OverloadedError: As many requests are under way as may.
            EngineClosedError: The server is shutting down.
            AsyncgenError: What the engine refuses.
        """
        try:
            self._inside.enter_context(self._gate.admit(self, self._client))
        except ApiError as refused:
            if refused.status == 429:
                raise OverloadedError(refused.message, refused.retry_after or 1.0) from None
            raise EngineClosedError(refused.message) from None
        try:
            await self._stream.__aenter__()
        except BaseException:
            self._inside.close()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Cancel what still runs."""
        try:
            await self._stream.__aexit__(kind, error, traceback)
        finally:
            self._inside.close()

    async def aclose(self) -> None:
        """Cancel what still runs."""
        await self.__aexit__(None, None, None)

    async def events(self) -> AsyncIterator[TokenEvent]:
        """Read what each step settled.

        Raises:
            EngineClosedError: The server left before the end.
        """
        async for event in self._stream.events():
            yield event
        self._check()

    async def __aiter__(self) -> AsyncIterator[str]:
        """Read text.

        Raises:
            EngineClosedError: The server left before the end.
        """
        async for text in self._stream:
            yield text
        self._check()

    def cancel(self) -> None:
        """Stop the work at the next step."""
        self._stream.cancel()

    def abort(self, error: ApiError) -> None:
        """End now; who reads is told."""
        self._is_aborted = True
        self._stream.cancel()

    def _check(self) -> None:
        if self._is_aborted:
            raise EngineClosedError("the server is shutting down")


class HeartbeatMiddleware:
    """Ends a page's heartbeat when the server leaves and no page waits for anything any more.

    A heartbeat has no end of its own, so the server would wait for it; and ended too early, it
    would take the answers of its page with it.
    """

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        """Wrap an application.

        Args:
            app: The application.
            gate: Says when the server leaves.
        """
        self._app = app
        self._gate = gate
        self._others = 0
        self._quiet = anyio.Event()
        self._quiet.set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Tell heartbeats that their page has gone, once no answer needs them any more."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        if not scope["path"].startswith(HEARTBEAT):
            await self._other(scope, receive, send)
            return
        has_begun = is_whole = False

        async def until_left() -> Message:
            found: Message = {"type": "http.disconnect"}

            async def listen() -> None:
                nonlocal found
                found = await receive()
                group.cancel_scope.cancel()

            async with anyio.create_task_group() as group:
                group.start_soon(listen)
                await self._left()
                group.cancel_scope.cancel()
            return found

        async def noted(message: Message) -> None:
            nonlocal has_begun, is_whole
            has_begun = True
            is_whole = message["type"] == "http.response.body" and not message.get("more_body")
            await send(message)

        await self._app(scope, until_left, noted)
        if has_begun and not is_whole:
            await send({"type": "http.response.body", "body": b""})

    async def _other(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Count a request that ends by itself."""
        if self._quiet.is_set():
            self._quiet = anyio.Event()
        self._others += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._others -= 1
            if not self._others:
                self._quiet.set()

    async def _left(self) -> None:
        """Return when the server leaves and nothing but heartbeats is under way."""
        await self._gate.wait_draining()
        while self._gate.count or self._others:
            await self._gate.wait_empty()
            await self._quiet.wait()
