"""Answers one request for a completion: runs its streams, writes the reply, watches the client.

It is a Starlette response, because only a response has both ends of the connection: whichever
server runs the application, and whether the reply streams or not, the client's leaving is seen
here, at once, and leaves the streams, which cancels them also in the middle of a prompt.
"""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import anyio
from starlette.responses import Response

from asyncgen import Usage
from asyncgen_apps.clients import ANYBODY
from asyncgen_apps.openai_http.bodies import check_whole, whole
from asyncgen_apps.openai_http.failures import ApiError, from_exception
from asyncgen_apps.openai_http.job import Job
from asyncgen_apps.openai_http.reply import MARK, Reply, Template, event_line
from asyncgen_apps.openai_http.shapes import counts_object
from asyncgen_apps.websocket.params import NO_PRIORITY

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import Receive, Scope, Send

    from asyncgen import TokenEvent
    from asyncgen_apps.engine import Engine
    from asyncgen_apps.openai_http.gate import Gate
    from asyncgen_apps.openai_http.settings import ServerSettings
    from asyncgen_apps.openai_http.shapes import Shape
    from asyncgen_apps.openai_http.translate import Plan


_log = logging.getLogger("asyncgen.http")

PATIENCE = 1.0
"""Seconds a stream waits for its first token before its head goes out. Until then a failure has
a status of its own."""


@dataclass(frozen=True, slots=True)
class StreamWishes:
    """What a streamed reply has beside its text.

    Attributes:
        usage: A last chunk with the token counts.
        continuous_usage: Token counts in every chunk.
    """

    usage: bool = False
    continuous_usage: bool = False


class Answer(Response):
    """The reply to one request, computed while it is sent."""

    def __init__(
        self,
        llm: Engine,
        gate: Gate,
        settings: ServerSettings,
        plan: Plan,
        shape: Shape,
        stream: StreamWishes | None,
    ) -> None:
        """Describe the reply; nothing runs before it is called.

        Args:
            llm: The engine.
            gate: Lets it in.
            settings: For the times of patience.
            plan: What to run.
            shape: How to lay it out.
            stream: Stream, with these wishes; ``None`` replies in one piece.
        """
        super().__init__()
        self._llm = llm
        self._gate = gate
        self._settings = settings
        self._plan = plan
        self._shape = shape
        self._wishes = stream
        self._aborted: ApiError | None = None
        self._prompt_tokens = 0
        self._tokens = plan.num_given
        self._client = ANYBODY

    def abort(self, error: ApiError) -> None:
        """End now, and tell the client why."""
        self._aborted = error
        self._scope.cancel()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run and reply."""
        self._scope = anyio.CancelScope()  # here: it may have been made on a worker thread
        reply = Reply(send)
        began = time.monotonic()
        self._client = scope.get("state", {}).get("client", ANYBODY)
        try:
            self._check_priority()
            with self._gate.admit(self):
                async with anyio.create_task_group() as group:
                    # In a task of its own: waking one costs by the depth of its calls, and this
                    # one stands below a dozen of the framework's. Here, where little happens, the
                    # client is watched.
                    group.start_soon(self._work, reply, group.cancel_scope)
                    await self._watch(receive, reply, group.cancel_scope)
        except ApiError as refused:
            await reply.fail(refused)
        if not reply.is_finished:
            _log.info("client left after %.3f s", time.monotonic() - began)

    def _check_priority(self) -> None:
        """Refuse what only some clients may say."""
        may = self._settings.allow_priority or self._client.may_prioritise
        if not may and any("priority" in part.params for part in self._plan.parts):
            raise ApiError(400, NO_PRIORITY, param="priority", code="unsupported_parameter")

    async def _work(self, reply: Reply, running: anyio.CancelScope) -> None:
        """Answer, or say why not; then stop watching the client."""
        with self._scope:
            await self._answer(reply)
        if self._aborted is not None:
            await reply.fail(self._aborted)
        running.cancel()

    async def _answer(self, reply: Reply) -> None:
        """Run the streams and write what they give; every failure is told."""
        try:
            async with Job(self._llm, self._plan.parts, self._client) as job:
                if self._wishes is None:
                    await reply.whole(await whole(job, self._shape))
                else:
                    await self._stream(job, reply, self._wishes)
        except OSError:
            return  # nobody listens any more
        except Exception as error:
            await reply.fail(from_exception(error, self._plan.names))

    async def _stream(self, job: Job, reply: Reply, wishes: StreamWishes) -> None:
        """Write events as they come, then the counts and the end."""
        if wishes.continuous_usage:
            self._prompt_tokens = await _count_prompts(self._llm, self._plan)
        opening = list(self._shape.opening(self._prompts(job), self._plan.choices))
        templates: dict[int, Template] = {}
        tells_tokens = self._plan.logprobs or self._plan.token_ids
        varies = tells_tokens or wishes.continuous_usage

        def laid_out(index: int, event: TokenEvent) -> str:
            """Spell an event out; before the first one come the chunks that open the stream."""
            objects = [*opening, self._shape.chunk(index, event)]
            opening.clear()
            if wishes.usage:
                for one in objects:
                    one["usage"] = self._usage_so_far() if wishes.continuous_usage else None
            return "".join(map(event_line, objects))

        def take(index: int, event: TokenEvent) -> Awaitable[None] | None:
            ended = event.finish_reason
            if ended is not None:
                check_whole(index, event)
            self._tokens += len(event.token_ids)
            if not event.text and ended is None and not tells_tokens:
                return None
            if ended is not None or opening or varies:
                line = laid_out(index, event)
            else:
                template = templates.get(index)
                if template is None:
                    template = templates[index] = self._template(index, event, wishes)
                line = template.line(event.text)
            return reply.lines(line)

        await job.read(take)
        if wishes.usage:
            await reply.events([self._shape.closing(job.usage())])
        await reply.finish()

    def _prompts(self, job: Job) -> list[list[int]]:
        """Token ids of the prompts, where they are told."""
        return job.prompt_ids if self._plan.token_ids else []

    def _template(self, index: int, event: TokenEvent, wishes: StreamWishes) -> Template:
        """What all pieces of a choice have in common."""
        pattern = self._shape.chunk(index, replace(event, text=MARK))
        return Template({**pattern, "usage": None} if wishes.usage else pattern)

    def _usage_so_far(self) -> dict[str, object]:
        return counts_object(Usage(self._prompt_tokens, self._tokens))

    async def _watch(self, receive: Receive, reply: Reply, running: anyio.CancelScope) -> None:
        """Leave when the client leaves or reads no more; tell it in a long silence that we live."""
        settings = self._settings
        streams = self._wishes is not None
        while True:
            early = streams and not reply.is_streaming
            with anyio.move_on_after(PATIENCE if early else settings.ping_seconds):
                message = await receive()
                if message["type"] == "http.disconnect":
                    running.cancel()
                    return
                continue
            silent = time.monotonic() - reply.sent_at
            if reply.is_sending:  # also in the last write: a place must not be held for ever
                if silent > settings.stall_seconds:
                    _log.warning("a client has read nothing for %.0f s: given up", silent)
                    running.cancel()
                    return
                continue
            if not streams or reply.is_finished:
                continue
            if early:
                await reply.begin()
            if early or silent >= settings.ping_seconds:
                await reply.ping()


async def _count_prompts(llm: Engine, plan: Plan) -> int:
    """Tokens of all prompts, as the engine will count them."""
    total = 0
    for part in plan.parts:
        if part.counts_prompt:
            variables = part.params.get("chat_template_kwargs")
            total += await llm.count_tokens(part.prompt, chat_template_kwargs=variables)
    return total
