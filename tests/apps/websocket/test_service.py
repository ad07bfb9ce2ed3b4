"""Test the service apart from its connections, on both loops, and the package's names."""

from __future__ import annotations

import logging
import subprocess
import sys
from functools import partial
from typing import TYPE_CHECKING

import anyio
import pytest

import asyncgen_apps.websocket
from asyncgen import AsyncLLM
from asyncgen_apps.websocket.service import StreamService
from asyncgen_apps.websocket.settings import StreamSettings
from tests.apps.websocket.serving import STORY, endless, teller, wait_for
from tests.cases import for_each
from tests.doubles.engine import no_thread_left
from tests.doubles.models import byte_tokenizer

if TYPE_CHECKING:
    from asyncgen_apps.websocket.session import Session


__all__ = ["no_thread_left"]

pytestmark = pytest.mark.anyio


def deliver(session: Session) -> None:
    """Be a socket that takes everything, and closes when asked to."""
    if session.closing is None:
        session.take()
    else:
        session.leave(None)


GENERATE = '{"type":"generate","id":"a","prompt":"%s"}'


async def test_prompts_stay_out_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    for log_prompts in (False, True):
        settings = StreamSettings(log_prompts=log_prompts)
        caplog.clear()
        with caplog.at_level(logging.DEBUG, "asyncgen.websocket"):
            async with (
                AsyncLLM(teller(), tokenizer=byte_tokenizer()) as llm,
                StreamService(llm, settings) as service,
            ):
                session = service.open(authorization=None, origin=None, host=None)
                session.receive(GENERATE % "\U0001f511")
                await wait_for(lambda: not service._streams)
                session.receive(
                    '{"type":"generate","id":"b","prompt":"k","params":{"a":"\U0001f511"}}'
                )
                session.leave(None)
        assert ("\\ud83d\\udd11" in caplog.text or "\U0001f511" in caplog.text) is log_prompts
        assert "request=a" in caplog.text


async def test_leaving_the_service_block_ends_running_requests() -> None:
    async with AsyncLLM(endless(), tokenizer=byte_tokenizer()) as llm:
        async with StreamService(llm) as service:
            session = service.open(authorization=None, origin=None, host=None)
            session.bind(partial(deliver, session), partial(session.leave, None))
            session.receive(GENERATE % "x")
            await wait_for(lambda: llm.metrics().requests_running == 1)
        assert not service._streams
        with anyio.fail_after(60):
            text = (await llm.generate("x", max_new_tokens=1)).text
        assert text is not None


async def test_a_detached_request_ends_with_its_grace() -> None:
    settings = StreamSettings(grace_seconds=0.05)
    async with (
        AsyncLLM(endless(), tokenizer=byte_tokenizer()) as llm,
        StreamService(llm, settings) as service,
    ):
        session = service.open(authorization=None, origin=None, host=None)
        session.receive(GENERATE % "x")
        await wait_for(lambda: llm.metrics().requests_running == 1)
        session.leave(None)
        assert service.counters.connections == 0
        await wait_for(lambda: not service._streams and not len(service.registry))


async def test_the_answer_is_kept_for_a_client_that_comes_back() -> None:
    async with (
        AsyncLLM(teller(), tokenizer=byte_tokenizer()) as llm,
        StreamService(llm) as service,
    ):
        session = service.open(authorization=None, origin=None, host=None)
        session.receive(GENERATE % "x")
        await wait_for(lambda: not service._streams)
        frames = b"".join(session.take()).decode()
        session.leave(None)
        assert STORY.split()[-1] in frames
        assert service.registry.kept_bytes > len(STORY)


@for_each("name", asyncgen_apps.websocket.__all__)
def test_public_names_match_their_objects(name: str) -> None:
    assert getattr(asyncgen_apps.websocket, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        asyncgen_apps.websocket.nothing  # noqa: B018


def test_a_client_needs_neither_torch_nor_the_server() -> None:
    code = "import sys; from asyncgen_apps.websocket import connect; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "asyncgen_apps.websocket.client.client" in loaded
    assert not loaded & {"torch", "asyncgen_apps.websocket.server", "websockets.asyncio.server"}
