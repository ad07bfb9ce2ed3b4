"""The bundled model behind a real server, on a loop in a thread, at a pace that a test chooses."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyio.from_thread import start_blocking_portal

from asyncgen import AsyncLLM, LogitsProcessorList
from asyncgen_apps.websocket.server import serve_websocket
from asyncgen_apps.websocket.settings import StreamSettings
from tests.apps.engine_process import engine_process

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from anyio.from_thread import BlockingPortal

    from asyncgen import Completion, Prompt, TextStream
    from asyncgen_apps.engine import Engine

PATIENCE = 60.0
LONG = 800
"""Tokens: longer than any test watches."""


class PacedLLM(AsyncLLM):
    """A model that takes its time, so that a test can act in mid-stream.

    Attributes:
        delay: Seconds added to each token; such an answer does not end before its longest.
        may_go_on: While it is not set, no token comes.
        asked: How many requests there were.
    """

    delay = 0.0

    def __init__(self, *args: Any, **options: Any) -> None:
        """Open it as any other."""
        super().__init__(*args, **options)
        self.asked = 0
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def stream(self, prompt: Prompt, **params: Any) -> TextStream:
        """Answer at the pace."""
        self.asked += 1
        if self.delay or not self.may_go_on.is_set():
            longest = min(LONG, params.get("max_new_tokens", LONG))
            slow = LogitsProcessorList([self._wait])
            params = {**params, "logits_processor": slow, "min_new_tokens": longest}
        return super().stream(prompt, **params)

    def _wait(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        time.sleep(self.delay)
        self.may_go_on.wait(PATIENCE)
        return scores


@dataclass
class Hosted:
    """A loop in a thread that serves an engine.

    Attributes:
        portal: The loop.
        llm: The engine.
    """

    portal: BlockingPortal
    llm: Engine

    @contextmanager
    def serving(self, **settings: Any) -> Iterator[int]:
        """Serve it until the block is left; gives the port.

        Args:
            **settings: Those of ``StreamSettings``, lists for tuples; and perhaps the ``port``.
        """
        port = settings.pop("port", 0)
        values: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
        }
        server = serve_websocket(self.llm, "127.0.0.1", port, settings=StreamSettings(**values))
        with self.portal.wrap_async_context_manager(server) as served:
            yield served.port

    @property
    def busy(self) -> int:
        """Count the requests that run or wait."""
        figures = self.portal.call(self.llm.measure)
        return int(figures.requests_running + figures.requests_waiting)

    def wait_idle(self) -> None:
        """Wait until nothing runs."""
        end = time.monotonic() + PATIENCE
        while self.busy:
            assert time.monotonic() < end, "it still runs"
            time.sleep(0.005)


@dataclass
class Model(Hosted):
    """The bundled model, at a pace.

    Attributes:
        llm: The model.
    """

    llm: PacedLLM

    def answer(self, prompt: Prompt, **params: Any) -> Completion:
        """Return the model's answer without a server."""

        async def run() -> Completion:
            return await self.llm.generate(prompt, **params)

        return self.portal.call(run)


@contextmanager
def engine_elsewhere() -> Iterator[Hosted]:
    """The bundled model, in another process."""
    with start_blocking_portal("asyncio") as portal, engine_process(num_threads=1) as llm:
        yield Hosted(portal, llm)


@contextmanager
def paced_model() -> Iterator[Model]:
    """Load the model; it is closed when the block is left."""
    with (
        start_blocking_portal("asyncio") as portal,
        portal.wrap_async_context_manager(PacedLLM("demo", num_threads=1)) as llm,
    ):
        yield Model(portal, llm)
