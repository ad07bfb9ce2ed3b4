"""The chat over the bundled model in a process of its own, at a pace that a test chooses.

A process of its own, because Gradio leaves event loops and sockets to the garbage collector. The
test talks to it by lines of JSON on its standard input and output.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tests.apps.gradio_chat.doubles import ScriptedStream

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch

    import asyncgen
    from asyncgen import GenerationConfig, MetricsSnapshot, Prompt, TextStream, Tokenizer

EXAMPLE = "Tell me a story about a fox."
RUNNING, WAITING = 2, 2
"""What the engine takes: two answers at once, two more in the queue."""
LONG = 400
"""Tokens: longer than any test watches."""
ENDLESS = 1000
"""Tokens: nearly all that the model's context holds."""


class Served:
    """A served chat, seen from the test's process."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        """Wait until it is there."""
        self._process = process
        self.url: str = self._read()["url"]

    def set(self, *, delay: float = 0.0, says: str | None = None, **extra: Any) -> None:
        """Choose how the answers to come are, and forget those that were asked for.

        Args:
            delay: Seconds added to each token; such an answer does not end by itself.
            says: What is answered in place of the model; empty: nothing, until it is stopped.
            **extra: Parameters added to each request.
        """
        self._tell({"delay": delay, "says": says, "extra": extra})

    @property
    def asked(self) -> list[tuple[Any, dict[str, Any]]]:
        """Prompt and parameters of each request since ``set``."""
        return [(prompt, params) for prompt, params in self._tell({})["asked"]]

    @property
    def busy(self) -> int:
        """Count the requests that run or wait."""
        return int(self._tell({})["busy"])

    def occupy(self, requests: int) -> None:
        """Have so many slow answers under way besides those of pages; 0 ends them."""
        self._tell({"occupied": requests})

    def offer(self, option: str) -> None:
        """Have every answer drawn until the next ``set`` offer this as what to say next."""
        self._tell({"option": option})

    def die(self) -> None:
        """Have the engine's thread die at the next token of a slow answer."""
        self._tell({"deadly": True})

    def kill(self) -> None:
        """End the server's process at once, as if its machine had been switched off."""
        self._process.kill()

    def wait_idle(self, seconds: float, busy: int = 0) -> float:
        """Wait until no more than ``busy`` run, at most ``seconds``; return how long it took."""
        began = time.monotonic()
        while self.busy > busy:
            if time.monotonic() - began > seconds:
                raise AssertionError(f"still running after {seconds} s")
            time.sleep(0.01)
        return time.monotonic() - began

    def wait_busy(self) -> None:
        """Wait until one runs."""
        began = time.monotonic()
        while self.busy != 1:
            assert time.monotonic() - began < 60, "nothing runs"
            time.sleep(0.01)

    def _tell(self, order: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the server ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found


@contextmanager
def serving() -> Iterator[Served]:
    """Serve the chat until the block is left."""
    environ = {**os.environ, "OMP_NUM_THREADS": "1", "GRADIO_ANALYTICS_ENABLED": "False"}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.apps.gradio_chat.serving"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environ,
    )
    with process:
        try:
            yield Served(process)
        finally:
            assert process.stdin is not None
            process.stdin.close()
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()


@dataclass
class PacedModel:
    """The bundled model, slowed down where a test wants to watch."""

    llm: asyncgen.AsyncLLM
    delay: float = 0.0
    says: str | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    asked: list[tuple[Prompt, dict[str, Any]]] = field(default_factory=list)
    scripted: list[ScriptedStream] = field(default_factory=list)
    deadly: bool = False
    occupying: list[TextStream] = field(default_factory=list)
    option: str | None = None

    @property
    def generation_config(self) -> GenerationConfig:
        return self.llm.generation_config

    @property
    def tokenizer(self) -> Tokenizer:
        return self.llm.tokenizer

    async def measure(self) -> MetricsSnapshot:
        return await self.llm.measure()

    def stream(self, prompt: Prompt, **params: Any) -> TextStream | ScriptedStream:
        self.asked.append((prompt, dict(params)))
        if self.says is not None:
            self.scripted.append(ScriptedStream(self.says, waits=not self.says))
            return self.scripted[-1]
        return self.llm.stream(prompt, **{**self._slowed(params), **self.extra})

    def _slowed(self, params: dict[str, Any]) -> dict[str, Any]:
        """Add the delay, and have a slow answer go on."""
        import asyncgen

        if not self.delay:
            return params
        waiting = asyncgen.LogitsProcessorList([self._wait])
        return {**params, "logits_processor": waiting, "min_new_tokens": LONG}

    def _wait(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self.deadly:
            from asyncgen.engine.core import Engine

            setattr(Engine, "step", _die)  # noqa: B010 - of this process, which is the test's
        time.sleep(self.delay)
        return scores

    async def occupy(self, requests: int) -> None:
        """Start answers that nobody reads and that outlast any test, or end them all."""
        import asyncgen
        from asyncgen_apps.serving.clients import Proxies

        for stream in self.occupying:
            await stream.aclose()
        pace = asyncgen.LogitsProcessorList([_dawdle])
        client = Proxies(()).client("127.0.0.1", None).id  # that of the pages: they wait behind
        slowed: dict[str, Any] = {
            "logits_processor": pace, "min_new_tokens": ENDLESS, "client": client
        }  # fmt: skip
        self.occupying = [self.llm.stream("Once", **slowed) for _ in range(requests)]
        for stream in self.occupying:
            await stream.__aenter__()

    async def obey(self, order: dict[str, Any]) -> dict[str, Any]:
        """Follow what the test says."""
        if "delay" in order:
            self.delay, self.says, self.extra = order["delay"], order["says"], order["extra"]
            self.asked, self.scripted, self.option = [], [], None
        self.option = order.get("option", self.option)
        if "occupied" in order:
            await self.occupy(order["occupied"])
        self.deadly = order.get("deadly", False)
        if not self.llm.is_healthy:
            return {"busy": 0, "asked": self.asked}
        figures = await self.measure()
        open_scripts = sum(not stream.is_closed for stream in self.scripted)
        busy = figures.requests_running + figures.requests_waiting + open_scripts
        return {"busy": busy, "asked": self.asked}

    def with_options(self, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add the option to the answers among these."""
        if self.option is None:
            return messages
        offered = [{"label": self.option, "value": self.option}]
        answers = ({**m, "options": offered} if m["role"] == "assistant" else m for m in messages)
        return list(answers)


def _die(engine: object) -> None:
    """Fail in a step, through no fault of a request."""
    raise RuntimeError("the engine's thread was told to end")


def _dawdle(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
    """Two answers of :data:`ENDLESS` tokens take longer than a test may."""
    time.sleep(0.1)
    return scores


def main() -> None:
    """Serve until standard input ends."""
    from anyio import from_thread

    import asyncgen
    from asyncgen_apps.gradio_chat import build_chat, launch_options
    from asyncgen_apps.gradio_chat import chat as drawn

    out = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else is printed
    llm = asyncgen.AsyncLLM("demo", num_threads=1, max_running=RUNNING, max_queue_size=WAITING)
    with from_thread.start_blocking_portal() as portal:
        portal.call(llm.start)
        model = PacedModel(llm)
        draw = drawn.as_messages  # type: ignore[attr-defined]
        drawn.as_messages = lambda *given: model.with_options(draw(*given))  # type: ignore[attr-defined]
        page = build_chat(model, name="demo", examples=[EXAMPLE])
        _, url, _ = page.launch(
            server_name="127.0.0.1", prevent_thread_lock=True, quiet=True, **launch_options()
        )
        out.write(json.dumps({"url": url}) + "\n")
        out.flush()
        for line in sys.stdin:
            out.write(json.dumps(portal.call(model.obey, json.loads(line))) + "\n")
            out.flush()
        page.close(verbose=False)
        portal.call(llm.aclose)


if __name__ == "__main__":
    main()
