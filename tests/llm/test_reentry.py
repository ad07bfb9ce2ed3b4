"""Code that an engine computes with may not wait for that engine: an error to it alone, at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch

import asyncgen
from asyncgen.errors import EngineReentryError
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Ask = Callable[[], object]
    """Asks an engine from wherever it is called."""


def processor(ask: Ask) -> dict[str, Any]:
    class Asking(asyncgen.LogitsProcessor):
        def __call__(self, input_ids: Any, scores: Any) -> Any:
            ask()
            return scores

    return {"logits_processor": [Asking()]}


def criterion(ask: Ask) -> dict[str, Any]:
    class Asking(asyncgen.StoppingCriteria):
        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            ask()
            return torch.zeros(len(input_ids), dtype=torch.bool)

    return {"stopping_criteria": [Asking()]}


def prefix(ask: Ask) -> dict[str, Any]:
    def allowed(index: int, ids: Any) -> list[int]:
        ask()
        return [*range(100)]

    return {"prefix_allowed_tokens_fn": allowed}


def streamer(ask: Ask) -> dict[str, Any]:
    class Asking:
        def put(self, value: Any) -> None:
            ask()

        def end(self) -> None:
            pass

    return {"streamer": Asking()}


def method(ask: Ask) -> dict[str, Any]:
    def custom(model: Any, input_ids: Any, generation_config: Any, **_: Any) -> Iterator[Any]:
        try:
            yield torch.tensor([5])
        finally:
            ask()

    return {"custom_generate": custom}


KINDS = (processor, criterion, prefix, streamer, method)


@pytest.fixture(scope="module")
def llm() -> Iterator[asyncgen.LLM]:
    with asyncgen.LLM("demo", num_threads=1) as one:
        yield one


def demand(llm: asyncgen.LLM, given: dict[str, Any]) -> None:
    """Demand the error of a request, and that the engine serves others."""
    with pytest.raises(EngineReentryError, match="asks the same engine"):
        llm.generate("Once", max_new_tokens=3, **given)
    assert llm.generate("Once", max_new_tokens=3, do_sample=False).text


@for_each("kind", KINDS)
def test_engine_asked_by_what_it_computes_with(llm: asyncgen.LLM, kind: Any) -> None:
    asks: tuple[Ask, ...] = (
        lambda: llm.generate("x", max_new_tokens=1),
        lambda: [*llm.stream("x", max_new_tokens=1)],
        lambda: llm.embed("x"),
    )
    for ask in asks:
        demand(llm, kind(ask))


@for_each("kind", KINDS)
def test_a_stream_that_was_made_elsewhere_is_not_read_by_what_it_computes_with(
    llm: asyncgen.LLM, kind: Any
) -> None:
    made = llm.stream("x", max_new_tokens=3)
    demand(llm, kind(lambda: next(made)))
    assert [*made]  # nobody has left it


@for_each("kind", [processor, criterion, prefix])
def test_results_of_a_manager_are_not_awaited_by_what_it_computes_with(kind: Any) -> None:
    manager = asyncgen.load_model("demo").init_continuous_batching()
    asks: tuple[Ask, ...] = (
        manager.get_result,
        lambda: manager.get_result("b", timeout=60),
        lambda: next(iter(manager)),
        lambda: next(manager.request_id_iter("b")),
    )
    manager.start()
    try:
        for number, ask in enumerate(asks):
            manager.add_request([5, 6], f"a{number}", max_new_tokens=3, **kind(ask))
            found = manager.get_result(f"a{number}", timeout=60)
            assert found is not None and found.error is not None
            assert "asks the same engine" in found.error
    finally:
        manager.stop()


@for_each("kind", KINDS)
def test_asynchronous_engine_asked_by_a_loop_of_its_own_thread(
    anyio_backend_name: str, kind: Any
) -> None:
    async def main() -> None:
        async with asyncgen.AsyncLLM("demo", num_threads=1) as llm:

            def ask() -> None:
                anyio.run(lambda: llm.generate("x", max_new_tokens=1), backend=anyio_backend_name)

            with pytest.raises(EngineReentryError):
                await llm.generate("Once", max_new_tokens=3, **kind(ask))
            assert (await llm.generate("Once", max_new_tokens=3)).text

    anyio.run(main, backend=anyio_backend_name)


def test_two_engines_may_ask_one_way_and_not_in_a_ring(llm: asyncgen.LLM) -> None:
    with asyncgen.LLM("demo", num_threads=1) as other:
        one_way = processor(lambda: other.generate("x", max_new_tokens=1))
        assert llm.generate("Once", max_new_tokens=3, **one_way).text
        back = processor(lambda: llm.generate("x", max_new_tokens=1))
        demand(llm, processor(lambda: other.generate("x", max_new_tokens=1, **back)))
        assert other.generate("Once", max_new_tokens=3).text
        # The other way round, since nothing of before is kept.
        assert other.generate("Once", max_new_tokens=3, **back).text


def test_close_of_what_it_computes_with_ends_the_engine() -> None:
    llm = asyncgen.LLM("demo", num_threads=1)
    with llm:
        completion = llm.generate("Once", max_new_tokens=50, **processor(llm.close))
        assert completion.finish_reason == "aborted"
    with pytest.raises(asyncgen.EngineClosedError):
        llm.generate("Once")
