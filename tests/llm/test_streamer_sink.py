"""`generate(prompt, streamer=…)`: any streamer is fed from the decode thread, errors included."""

from __future__ import annotations

import threading
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch

from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import LLM, AsyncLLM
from asyncgen.llm.reader_wait import InLoop
from streamers import (
    AsyncTextIteratorStreamer,
    Mailbox,
    ProducerError,
    TextIteratorStreamer,
    TextStreamer,
)
from tests.cases import for_each
from tests.doubles.engine import no_thread_left
from tests.doubles.models import Gate, TableModel, byte_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["no_thread_left"]

PROMPT = "Hi"
STORY = "Once upon a time there was a fox. "
TOKENIZER = byte_tokenizer()


class Recorder:
    """A user's streamer; raises in its third `put` if it has an error."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.seen: list[Any] = []
        self.threads: set[str] = set()
        self.error = error

    def put(self, value: torch.Tensor) -> None:
        self.seen.append(value.tolist())
        self.threads.add(threading.current_thread().name)
        if self.error is not None and len(self.seen) == 3:
            raise self.error

    def end(self) -> None:
        self.seen.append("end")


class Told(Recorder):
    """One that wants to know of errors."""

    def fail(self, error: BaseException) -> None:
        self.seen.append(error)


class Shy(Recorder):
    """One whose `fail` cannot even be looked up."""

    @property
    def fail(self) -> Any:
        raise SystemExit


@pytest.fixture
def llm() -> Iterator[LLM]:
    with LLM(TableModel(script=STORY, prompt_length=2), tokenizer=TOKENIZER) as found:
        yield found


@for_each(
    "params",
    [
        {},
        {"temperature": 1.0, "seed": 3},
        {"n": 2, "temperature": 1.5, "seed": 3},
        {"n": 2, "temperature": 0},
        {"stop": "upon"},
        {"num_beams": 2},
        {"prompt_lookup_num_tokens": 3},
        {"penalty_alpha": 0.6, "top_k": 4},
    ],
)
def test_users_streamer_gets_prompt_ids_and_end(llm: LLM, params: dict[str, Any]) -> None:
    recorder = Recorder()
    result = llm.generate(PROMPT, streamer=recorder, max_new_tokens=12, **params)
    prompt, *steps, end = recorder.seen
    rows = len(result.samples)
    assert prompt == [list(PROMPT.encode())] * rows and end == "end"
    columns = (
        [list(column) for column in zip(*steps, strict=True)] if rows > 1 else [sum(steps, [])]
    )
    assert columns == [list(sample.token_ids) for sample in result.samples]
    assert recorder.threads == {"asyncgen-decode"}


def test_same_ids_come_from_the_model_and_from_the_engine(llm: LLM) -> None:
    model = TableModel(script=STORY, prompt_length=2)
    ours, theirs = Recorder(), Recorder()
    llm.generate(PROMPT, streamer=ours, max_new_tokens=9)
    streamer: Any = theirs
    model.generate(torch.tensor([list(PROMPT.encode())]), streamer=streamer, max_new_tokens=9)
    assert ours.seen == theirs.seen


def test_text_streamer_prints(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    result = llm.generate(
        PROMPT, streamer=TextStreamer(TOKENIZER, skip_prompt=True), max_new_tokens=20
    )
    assert capsys.readouterr().out == result.text + "\n" == STORY[:20] + "\n"


def test_text_iterator_streamer_is_read_in_another_thread(llm: LLM) -> None:
    streamer = TextIteratorStreamer(TOKENIZER, skip_prompt=True)
    options = {"streamer": streamer, "max_new_tokens": 20}
    thread = threading.Thread(target=llm.generate, args=(PROMPT,), kwargs=options)
    thread.start()
    assert "".join(streamer) == STORY[:20]
    thread.join()


@pytest.mark.anyio
async def test_async_text_iterator_streamer_is_read_beside_generate() -> None:
    model = TableModel(script=STORY, prompt_length=2)
    async with AsyncLLM(model, tokenizer=TOKENIZER) as llm, anyio.create_task_group() as tasks:
        streamer = AsyncTextIteratorStreamer(TOKENIZER, skip_prompt=True)
        results = []

        async def generate() -> None:
            results.append(await llm.generate(PROMPT, streamer=streamer, max_new_tokens=20))

        tasks.start_soon(generate)
        assert "".join([text async for text in streamer]) == STORY[:20]
    assert results[0].text == STORY[:20]


@pytest.mark.anyio
async def test_request_ends_when_the_readers_of_its_streamer_leave() -> None:
    async with AsyncLLM(TableModel(context_length=1_000_000), tokenizer=TOKENIZER) as llm:
        streamer = AsyncTextIteratorStreamer(TOKENIZER, skip_prompt=True)
        results = []

        async def generate() -> None:
            results.append(await llm.generate(PROMPT, streamer=streamer, suppress_tokens=[256]))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(generate)
            async with streamer:
                await anext(aiter(streamer))
        assert results[0].finish_reason == "cancelled"


@pytest.mark.anyio
async def test_reader_that_leaves_before_the_first_token_ends_the_request() -> None:
    gate = Gate()
    model = TableModel(hook=gate, context_length=1_000_000)
    async with AsyncLLM(model, tokenizer=TOKENIZER, max_running=1) as llm:
        results = {}
        streamer = AsyncTextIteratorStreamer(TOKENIZER, skip_prompt=True)

        async def generate(name: str, **options: Any) -> None:
            results[name] = await llm.generate(PROMPT, suppress_tokens=[256], **options)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(generate, "first", max_new_tokens=3))
            await anyio.to_thread.run_sync(gate.wait_arrived, 1)
            tasks.start_soon(partial(generate, "waiting", streamer=streamer))
            while not llm.metrics().requests_waiting:  # noqa: ASYNC110
                await anyio.sleep(0.005)
            streamer.close()
            gate.open()
        assert results["waiting"].finish_reason == "cancelled"
        assert results["waiting"].token_ids == ()
        assert len(results["first"].token_ids) == 3
    assert streamer.cancelled.on_set is None


@pytest.mark.anyio
async def test_reader_of_a_streamer_gets_the_error_of_its_request() -> None:
    async def read(streamer: AsyncTextIteratorStreamer, cause: type[BaseException]) -> None:
        with pytest.raises(ProducerError) as caught:
            async for _ in streamer:
                pass
        assert type(caught.value.__cause__) is cause

    def refuse(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        raise ZeroDivisionError

    async with AsyncLLM(TableModel(), tokenizer=TOKENIZER) as llm:
        cases: list[tuple[dict[str, Any], type[Exception]]] = [
            ({"temperature": -1}, InvalidRequestError),  # before it is posted
            ({"nonsense": 1}, InvalidRequestError),
            ({"token_healing": True}, InvalidRequestError),
            ({"generated_ids": [3]}, InvalidRequestError),
            ({"logits_processor": [refuse]}, ZeroDivisionError),  # on the decode thread
        ]
        for params, cause in cases:
            streamer = AsyncTextIteratorStreamer(TOKENIZER)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(read, streamer, cause)
                with pytest.raises(cause):
                    await llm.generate(PROMPT, streamer=streamer, max_new_tokens=4, **params)


@for_each("error", [ValueError("no"), SystemExit(3), GeneratorExit()])
@for_each("kind", [Recorder, Told])
def test_what_a_streamer_raises_ends_its_request_alone(
    llm: LLM, error: BaseException, kind: type[Recorder]
) -> None:
    recorder = kind(error)
    with pytest.raises(Exception) as caught:
        llm.generate(PROMPT, streamer=recorder, max_new_tokens=12)
    assert error in (caught.value, caught.value.__cause__)
    assert recorder.seen[3:] == ([caught.value] if kind is Told else [])
    assert llm.generate(PROMPT, max_new_tokens=4).text == STORY[:4]


def test_streamer_whose_end_raises_fails_its_request(llm: LLM) -> None:
    class Broken(Recorder):
        def end(self) -> None:
            raise KeyError("end")

    with pytest.raises(KeyError):
        llm.generate(PROMPT, streamer=Broken(), max_new_tokens=2)


def test_what_is_no_streamer_is_refused(llm: LLM) -> None:
    nothing: Any = print
    with pytest.raises(InvalidRequestError, match="`put` and `end`"):
        llm.generate(PROMPT, streamer=nothing)
    told = Told()
    two: Any = [PROMPT, PROMPT]
    with pytest.raises(InvalidRequestError, match="`streamer` is .*one prompt"):
        llm.generate(two, streamer=told)
    assert [type(each) for each in told.seen] == [InvalidRequestError]


@pytest.mark.anyio
async def test_streams_of_the_engine_and_async_streamers_share_one_kind_of_queue() -> None:
    streamer = AsyncTextIteratorStreamer(TOKENIZER)
    assert type(streamer._own_subscription().inbox) is Mailbox
    assert type(InLoop().inbox(lambda: None)) is Mailbox


def test_reader_is_told_though_fail_cannot_be_looked_up(llm: LLM) -> None:
    with pytest.raises(ValueError, match="planned"):
        llm.generate(PROMPT, streamer=Shy(ValueError("planned")), max_new_tokens=20)
    assert llm.generate(PROMPT, max_new_tokens=3).text == STORY[:3]


def test_streamer_that_would_have_to_be_awaited_is_refused(llm: LLM) -> None:
    async def later(*_: Any) -> None:
        raise AssertionError

    plain = Told()
    for name in ("put", "end", "fail"):
        kind = type("Mine", (Told,), {name: later})
        with pytest.raises(InvalidRequestError, match=f"nobody awaits its `async def {name}`"):
            llm.generate(PROMPT, streamer=kind())
        model: Any = TableModel()
        with pytest.raises(InvalidRequestError, match=f"nobody awaits its `async def {name}`"):
            model.generate(torch.tensor([[1, 2]]), streamer=kind())
    setattr(plain, "put", later)  # noqa: B010
    with pytest.raises(InvalidRequestError, match="nobody awaits its `async def put`"):
        llm.generate(PROMPT, streamer=plain)
