"""Answers one request for a completion: runs its streams and writes the reply."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import anyio

from asyncgen import PromptParams, Usage
from asyncgen_apps.openai_http.bodies import check_whole, whole
from asyncgen_apps.openai_http.cancellable_response import CancellableResponse
from asyncgen_apps.openai_http.large_replies import LargeReply
from asyncgen_apps.openai_http.prompt_reports import PromptReports
from asyncgen_apps.openai_http.request_streams import RequestStreams
from asyncgen_apps.openai_http.response_writer import MARK, EventTemplate, event_line
from asyncgen_apps.openai_http.serializers import counts_object
from asyncgen_apps.serving.row_budget import rows_of

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from asyncgen import TokenEvent
    from asyncgen_apps.engine import Engine
    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.echo import Echo
    from asyncgen_apps.openai_http.request_streams import Take
    from asyncgen_apps.openai_http.response_writer import ResponseWriter
    from asyncgen_apps.openai_http.serializers import Object, Serializer
    from asyncgen_apps.openai_http.settings import ServerSettings
    from asyncgen_apps.openai_http.translate import Plan


@dataclass(frozen=True, slots=True)
class UsageOptions:
    """Options of a streamed reply.

    Attributes:
        usage: A last chunk with the token counts.
        continuous_usage: Token counts in every chunk.
        progress: Chunks that tell how much of the prompt is read.
    """

    usage: bool = False
    continuous_usage: bool = False
    progress: bool = False


class CompletionResponse(CancellableResponse):
    """Reply to one request for a completion, computed while it is sent."""

    def __init__(
        self,
        llm: Engine,
        gate: Gate,
        settings: ServerSettings,
        plan: Plan,
        serializer: Serializer,
        stream: UsageOptions | None,
    ) -> None:
        """Describe the reply; nothing runs before it is called.

        Args:
            llm: The engine.
            gate: Lets it in.
            settings: For the times of patience.
            plan: Streams to run.
            serializer: Lays the reply out.
            stream: Token counts in a streamed reply; ``None`` replies in one piece.
        """
        super().__init__(
            gate,
            settings,
            streams=stream is not None,
            prioritises=any("priority" in part.params for part in plan.parts),
            names=plan.names,
            rows=plan.choices + len(plan.parts) * rows_of(plan.parts[0].params),
        )
        self._llm = llm
        self._plan = plan
        self._serializer = serializer
        self._usage_options = stream
        self._prompt_tokens = 0
        self._tokens = plan.num_given

    async def compute(self, reply: ResponseWriter) -> None:
        """Run the streams and write what they give."""
        plan = self._plan
        async with RequestStreams(
            self._llm, plan.parts, self._client, drops_logprobs=plan.logprobs
        ) as streams:
            if self._usage_options is not None:
                await self._stream(streams, reply, self._usage_options)
            elif plan.logprobs or plan.choices > 1:
                client = self._client.id
                with LargeReply(streams, self._serializer, self._gate, client) as large:
                    await reply.parts(await large.read())
            else:
                await reply.whole(await whole(streams, self._serializer, self.on_thread))

    async def _stream(
        self, streams: RequestStreams, reply: ResponseWriter, usage_options: UsageOptions
    ) -> None:
        """Write events as they come, then the counts and the end."""
        if usage_options.continuous_usage:
            self._prompt_tokens = await _count_prompts(self._llm, self._plan)
        echo = self._serializer.echo
        if echo is not None:
            await self.on_thread(echo.begin, streams.prompt_ids, streams.tokenizer)
        opening = list(self._serializer.opening(self._prompts(streams), self._plan.choices))
        templates: dict[int, EventTemplate] = {}
        has_turn = anyio.Lock(fast_acquire=True)  # so that many streams wait as one reply
        tells_tokens = self._plan.logprobs or self._plan.token_ids
        varies = tells_tokens or usage_options.continuous_usage

        def laid_out(index: int, event: TokenEvent) -> str:
            """Spell an event out; before the first one come the chunks that open the stream."""
            objects = [*opening, self._serializer.chunk(index, event)]
            opening.clear()
            if usage_options.usage:
                for one in objects:
                    one["usage"] = self._usage_so_far() if usage_options.continuous_usage else None
            return "".join(map(event_line, objects))

        async def tell_in_turn(index: int, event: TokenEvent) -> None:
            async with has_turn, self._gate.turns as turn:
                line = laid_out(index, event)
                turn.spend(len(line))
            await reply.lines(line)

        def take(index: int, event: TokenEvent) -> Awaitable[None] | None:
            ended = event.finish_reason
            if ended is not None:
                check_whole(index, event)
            self._tokens += len(event.token_ids)
            tells_more = bool(event.reasoning or event.tool_calls)
            if not (event.text or tells_more or tells_tokens) and ended is None:
                return None
            if self._plan.logprobs and self._plan.choices > 1:
                return tell_in_turn(index, event)
            if ended is not None or opening or varies or tells_more:
                line = laid_out(index, event)
            else:
                template = templates.get(index)
                if template is None:
                    template = templates[index] = self._template(index, event, usage_options)
                line = template.line(event.text)
            return reply.lines(line)

        told = take if echo is None else self._echoing(echo, take, reply, usage_options)
        if usage_options.progress:
            await self._read_telling_progress(streams, told, reply, usage_options)
        else:
            await streams.read(told)
        if usage_options.usage:
            await reply.events([self._serializer.closing(streams.usage())])
        await reply.finish()

    async def _read_telling_progress(
        self, streams: RequestStreams, take: Take, reply: ResponseWriter, options: UsageOptions
    ) -> None:
        """Read all streams, and tell meanwhile how much of each prompt is read."""

        async def tell(index: int, progress: Object) -> None:
            chunk = {**self._serializer.empty(index), "prompt_progress": progress}
            if options.usage:
                chunk["usage"] = self._usage_so_far() if options.continuous_usage else None
            await reply.events([chunk])

        told = PromptReports(streams.reading(), tell)
        failure: Exception | None = None
        async with anyio.create_task_group() as group:
            group.start_soon(told.run)
            try:
                await streams.read(told.before(take))
            except Exception as error:  # raised behind the group, which would wrap it
                failure = error
            group.cancel_scope.cancel()
        if failure is not None:
            raise failure

    def _echoing(
        self, echo: Echo, take: Take, reply: ResponseWriter, usage_options: UsageOptions
    ) -> Take:
        """Tell the prompt of each choice before its first event is taken."""
        echoed: set[int] = set()
        told: Counter[int] = Counter()

        async def tell_prompt(index: int, event: TokenEvent) -> None:
            echoed.add(index)
            chunks = iter(self._serializer.prompt(index))
            while True:
                async with self._gate.turns as turn:
                    one = next(chunks, None)
                    if one is None:
                        break
                    if usage_options.usage:
                        continuous = usage_options.continuous_usage
                        one["usage"] = self._usage_so_far() if continuous else None
                    line = event_line(one)
                    turn.spend(len(line))
                await reply.lines(line)
            number = echo.number(index)
            told[number] += 1
            if told[number] == self._plan.choices // len(echo.texts):
                echo.forget(number)
            waiting = take(index, event)
            if waiting is not None:
                await waiting

        def take_echoed(index: int, event: TokenEvent) -> Awaitable[None] | None:
            if self._plan.logprobs:
                echo.note(index, event)
            return take(index, event) if index in echoed else tell_prompt(index, event)

        return take_echoed

    def _prompts(self, streams: RequestStreams) -> list[list[int]]:
        """Return the token ids of the prompts if the reply has them."""
        return streams.prompt_ids if self._plan.token_ids else []

    def _template(
        self, index: int, event: TokenEvent, usage_options: UsageOptions
    ) -> EventTemplate:
        """Return the fields that all pieces of a choice share."""
        pattern = self._serializer.chunk(index, replace(event, text=MARK))
        return EventTemplate({**pattern, "usage": None} if usage_options.usage else pattern)

    def _usage_so_far(self) -> dict[str, object]:
        return counts_object(Usage(self._prompt_tokens, self._tokens))


async def _count_prompts(llm: Engine, plan: Plan) -> int:
    """Count the tokens of all prompts, as the engine will count them."""
    total = 0
    for part in plan.parts:
        if part.counts_prompt:
            said = {name: part.params.get(name) for name in PromptParams.__annotations__}
            total += await llm.count_tokens(part.prompt, **cast("PromptParams", said))
    return total
