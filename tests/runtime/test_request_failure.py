"""Whatever a request's own code raises ends that request alone, and reaches its reader tamed."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch

from asyncgen.engine.scheduling.scheduler import FIFOScheduler
from asyncgen.errors import EngineDiedError
from asyncgen.generation.logits.base import (
    Definition,
    LogitsProcessor,
    LogitsProcessorList,
    Stage,
)
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from asyncgen.llm.llm import LLM, AsyncLLM
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.runtime.request_failure import describe, request_failure
from asyncgen.text.sequence_text import SequenceText
from asyncgen.text.tokenizer import Tokenizer
from tests.cases import for_each, on_asyncio
from tests.doubles.engine import greedy_ids, no_thread_left
from tests.doubles.models import PATIENCE, Gate, TableModel, byte_tokenizer
from tests.engine.batches import Bench
from tests.engine.sync_calls import BatchModel

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["no_thread_left"]


class Bare(BaseException):
    """An error like a panic of Rust: no ``Exception``."""


class Silent(Bare):
    """One that has nothing to say, and makes a noise of it."""

    def __str__(self) -> str:
        raise KeyboardInterrupt


class Masked(Exception):
    """One that tells nobody its class."""

    def __getattribute__(self, name: str) -> Any:
        raise Bare("planned")


KINDS: tuple[type[BaseException], ...] = (
    GeneratorExit,
    asyncio.CancelledError,
    SystemExit,
    KeyboardInterrupt,
    Bare,
    ValueError,
)
PLACES = ("processor", "criterion", "prefix", "method", "decode")
LANE = {"cache_implementation": "dynamic"}
"""What keeps a request out of the shared batch."""


class Raises:
    """Raises at its third call."""

    def __init__(self, kind: type[BaseException]) -> None:
        self.kind, self.calls = kind, 0

    def __call__(self, *given: Any, **more: Any) -> None:
        self.calls += 1
        if self.calls >= 3:
            raise self.kind("planned")


def request_that_raises(place: str, kind: type[BaseException]) -> dict[str, Any]:
    """Parameters of a request whose own code raises."""
    raises = Raises(kind)

    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raises()
        return scores

    def criterion(input_ids: torch.Tensor, scores: torch.Tensor, **more: Any) -> torch.Tensor:
        raises()
        return torch.zeros(len(input_ids), dtype=torch.bool)

    def allowed(batch_id: int, input_ids: torch.Tensor) -> list[int]:
        raises()
        return [1, 2, 3]

    def method(model: Any, input_ids: torch.Tensor, **more: Any) -> Iterator[list[int]]:
        while True:
            raises()
            yield [7]

    given: dict[str, dict[str, Any]] = {
        "processor": {"logits_processor": LogitsProcessorList([processor])},
        "criterion": {"stopping_criteria": StoppingCriteriaList([criterion])},
        "prefix": {"prefix_allowed_tokens_fn": allowed},
        "method": {"custom_generate": method},
        "decode": {},
        "encode": {},
    }
    return given[place]


def break_tokenizer(patch: pytest.MonkeyPatch, place: str, kind: type[BaseException]) -> None:
    """Let a tokenizer raise over a prompt, or over the third token of an answer."""
    if place == "encode":
        encode = Tokenizer.encode_ids

        def encode_ids(self: Tokenizer, text: str, add_special_tokens: bool = True) -> list[int]:
            if text == "bad":
                raise kind("planned")
            return encode(self, text, add_special_tokens)

        patch.setattr(Tokenizer, "encode_ids", encode_ids)
    if place == "decode":
        add = SequenceText.add

        def put(self: SequenceText, token_ids: Any) -> tuple[str, str | None]:
            if 200 in token_ids:
                raise kind("planned")
            return add(self, token_ids)

        patch.setattr(SequenceText, "add", put)


def require_tamed(error: BaseException, kind: type[BaseException]) -> None:
    """Check the error that a reader gets."""
    if issubclass(kind, Exception):
        assert type(error) is kind
        return
    assert type(error) is RuntimeError
    assert kind.__name__ in str(error) and "planned" in str(error)
    assert type(error.__cause__) is kind


@pytest.mark.anyio
@on_asyncio
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lane", [False, True], ids=["batch", "lane"])
@pytest.mark.parametrize("place", [*PLACES, "encode"])
async def test_errors_of_one_request_do_not_end_another(
    place: str, lane: bool, kind: type[BaseException], monkeypatch: pytest.MonkeyPatch
) -> None:
    break_tokenizer(monkeypatch, place, kind)
    gate = Gate()
    model = TableModel(hook=gate)
    prompt: Any = [1, 2, 3]
    given = request_that_raises(place, kind) | (LANE if lane and place != "method" else {})
    if place == "decode":
        given["forced_bos_token_id"] = 200
        prompt = [5]
    if place == "encode":
        prompt = "bad"
    async with AsyncLLM(model, tokenizer=byte_tokenizer()) as llm:
        found: list[int] = []
        caught: list[BaseException] = []

        async def innocent() -> None:
            async for event in llm.stream([9, 8], max_new_tokens=30).events():
                found.extend(event.token_ids)

        async def guilty() -> None:
            try:
                await llm.generate(prompt, max_new_tokens=30, **given)
            except Exception as error:
                caught.append(error)
            finally:
                gate.open()

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(innocent)
                gate.allow(40)
                group.start_soon(guilty)
        assert found == greedy_ids(TableModel(), [9, 8], 30)
        require_tamed(caught[0], kind)
        assert llm.is_healthy
        assert (await llm.generate([4], max_new_tokens=2)).samples


@pytest.mark.anyio
@for_each("kind", KINDS)
async def test_a_failure_of_the_engine_itself_ends_the_engine(kind: type[BaseException]) -> None:
    class Broken(FIFOScheduler):
        def schedule_batch(self, token_budget: int, cache_budget: int) -> Any:
            raise kind("planned")

    async with AsyncLLM(TableModel(), tokenizer=byte_tokenizer(), scheduler=Broken) as llm:
        with pytest.raises(EngineDiedError, match="planned") as caught:
            await llm.generate([1, 2])
        assert type(caught.value.__cause__) is kind
        assert not llm.is_healthy


@pytest.mark.parametrize("lane", [False, True], ids=["batch", "lane"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_tokenizer_that_panics_over_the_rest_of_a_text(
    kind: type[BaseException], lane: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled request flushes what its text still has, on the thread of all."""
    bench = Bench(TableModel())
    request, sink = bench.add([1], max_new_tokens=20, **(LANE if lane else {}))
    _, other = bench.add([2], max_new_tokens=5)
    bench.step()
    bench.step()

    def panic(self: Any) -> Any:
        raise kind("planned")

    with monkeypatch.context() as patch:
        patch.setattr("asyncgen.text.sequence_text.SequenceText.finish", panic)
        # On a thread like the engine's: on the main one Ctrl-C is the user's.
        thread = threading.Thread(target=bench.engine.abort, args=(request,))
        thread.start()
        thread.join(PATIENCE)
    assert isinstance(sink.items[-1], BaseException)
    require_tamed(sink.items[-1], kind)
    bench.run()
    assert len(other.events) == 5
    bench.require_empty()


def test_error_without_text_does_not_end_the_manager() -> None:
    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if int(input_ids[0, 0]) == 1:
            raise Silent
        return scores

    manager = ContinuousBatchingManager(TableModel())
    manager.start()
    try:
        given: dict[str, Any] = {
            "logits_processor": LogitsProcessorList([processor]),
            "max_new_tokens": 3,
        }
        first = manager.add_request([1, 2], **given)
        second = manager.add_request([2, 2], **given)
        failed = manager.get_result(first, timeout=PATIENCE)
        done = manager.get_result(second, timeout=PATIENCE)
        assert failed is not None and "Silent" in (failed.error or "")
        assert done is not None and len(done.generated_tokens) == 3
    finally:
        manager.stop(block=True)


def test_error_that_hides_its_class_ends_its_request_alone() -> None:
    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise Masked

    found: type[BaseException] | None = None
    with LLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        try:
            llm.generate([1, 2], logits_processor=[processor], max_new_tokens=3)
        except Exception as error:  # pytest would ask it for its class
            found = type(error)
        assert found is Masked
        assert llm.generate([1, 2], max_new_tokens=3).token_ids


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_on_the_main_thread_an_interrupt_is_the_users(kind: type[BaseException]) -> None:
    def processor(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise kind

    with pytest.raises(kind):
        BatchModel().generate_batch([[1, 2]], logits_processor=LogitsProcessorList([processor]))


def test_ordinary_exceptions_are_returned_unchanged() -> None:
    assert describe(Silent()) == "Silent"
    plain = ValueError("as it is")
    assert request_failure(plain) is plain
    bare = Bare("tamed")
    tamed = request_failure(bare)
    assert "Bare: tamed" in str(tamed) and tamed.__cause__ is bare


@pytest.mark.anyio
@for_each("at", ["made", "run"])
@for_each("kind", [GeneratorExit, ValueError])
async def test_a_form_for_many_rows_that_raises(kind: type[BaseException], at: str) -> None:
    """Then each processor runs on its own row, and who raises there fails alone."""

    class Form:
        def __init__(self, parts: Any, scores: Any) -> None:
            if at == "made":
                raise kind("planned")

        def __call__(self, scores: Any) -> None:
            scores.values.zero_()
            raise kind("planned")

    class Own(LogitsProcessor):
        definition = Definition(Stage.PROCESSOR, 176, batched=Form)

        def __init__(self, raises: bool) -> None:
            self.raises = raises

        def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
            if self.raises:
                raise kind("planned")
            return scores

    def given(raises: bool) -> dict[str, Any]:
        return {"logits_processor": LogitsProcessorList([Own(raises)]), "max_new_tokens": 6}

    gate = Gate()
    async with AsyncLLM(TableModel(hook=gate), tokenizer=byte_tokenizer()) as llm:
        caught: list[Exception] = []
        found: list[int] = []

        async def read(prompt: list[int], raises: bool) -> None:
            try:
                completion = await llm.generate(prompt, **given(raises))
                found.extend(completion.samples[0].token_ids)
            except (RuntimeError, ValueError) as error:
                caught.append(error)

        with anyio.fail_after(PATIENCE):
            async with anyio.create_task_group() as group:
                group.start_soon(read, [9, 8], False)
                group.start_soon(read, [7, 8], True)
                gate.open()
        require_tamed(caught[0], kind)
        assert found == greedy_ids(TableModel(), [9, 8], 6)
        assert llm.is_healthy
