"""Decoding methods that users wrote, at both doors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import anyio
import numpy as np
import pytest
import torch

from asyncgen.errors import InvalidRequestError, MissingRequirementsError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.logits.base import LogitsProcessorList
from asyncgen.generation.stopping.criteria import StoppingCriteriaList
from asyncgen.generation.strategies.step import Step
from asyncgen.llm.llm import LLM, AsyncLLM
from asyncgen.reference.load_model import load_model
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.engine import greedy_ids, no_thread_left
from tests.doubles.hub import Repository, StandInHub
from tests.doubles.models import EOS, PAD, TableModel, byte_tokenizer
from tests.generation.test_custom_methods import write

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

__all__ = ["no_thread_left"]

PROMPT = "abc"
IDS = torch.tensor([list(PROMPT.encode())])

DOCUMENTED = """
import torch

def generate(model, input_ids, generation_config, left_padding=None, **kwargs):
    generation_config = generation_config or model.generation_config
    cur_length = input_ids.shape[1]
    max_length = generation_config.max_length or cur_length + generation_config.max_new_tokens
    if left_padding is not None:
        if not isinstance(left_padding, int) or left_padding < 0:
            raise ValueError(f"left_padding must be an integer above 0, but is {left_padding}")
        pad_token = generation_config.pad_token_id
        pads = torch.full(size=(input_ids.shape[0], left_padding), fill_value=pad_token)
        input_ids = torch.cat((pads.to(input_ids.device), input_ids), dim=1)
        cur_length = input_ids.shape[1]
    while cur_length < max_length:
        logits = model(input_ids).logits
        next_tokens = torch.argmax(logits[:, -1, :], dim=-1)
        input_ids = torch.cat((input_ids, next_tokens[:, None]), dim=-1)
        cur_length += 1
    return input_ids
"""  # the example of the reference document, less one of its look-ups


def picks(model: Any, ids: torch.Tensor) -> torch.Tensor:
    """Greedy ids ``[B]`` of a table model."""
    positions = torch.full((len(ids),), ids.shape[1] - 1)
    return model.core.logits(ids[:, -1], positions).argmax(-1)


def by_steps(
    model: Any, input_ids: torch.Tensor, stopping_criteria: Any, **kwargs: Any
) -> Generator[torch.Tensor, None, dict[str, int]]:
    """Greedy, one step at a time, with a result of its own."""
    count = 0
    while True:
        tokens = picks(model, input_ids)
        input_ids = torch.cat((input_ids, tokens[:, None]), dim=1)
        count += 1
        yield tokens
        if bool(stopping_criteria(input_ids, None).all()):
            return {"steps": count}


def at_once(
    model: Any, input_ids: torch.Tensor, stopping_criteria: Any, streamer: Any = None, **_: Any
) -> torch.Tensor:
    """Greedy in one go."""
    while True:
        tokens = picks(model, input_ids)
        input_ids = torch.cat((input_ids, tokens[:, None]), dim=1)
        if streamer is not None:
            streamer.put(tokens)
        if bool(stopping_criteria(input_ids, None).all()):
            return input_ids


def silent(model: Any, input_ids: torch.Tensor, stopping_criteria: Any) -> torch.Tensor:
    """The same without a streamer, and without keywords of any name."""
    return at_once(model, input_ids, stopping_criteria)


def endless(model: Any, input_ids: torch.Tensor, **_: Any) -> Generator[list[int], None, None]:
    """Never looks at its criteria."""
    while True:
        yield [65] * len(input_ids)


class Recorder:
    """A streamer that keeps what it is given."""

    def __init__(self) -> None:
        self.puts: list[list[int]] = []
        self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        self.puts.append(value.reshape(-1).tolist())

    def end(self) -> None:
        self.ends += 1


# The synchronous door.


def test_a_callable_gets_prepared_inputs() -> None:
    seen: dict[str, Any] = {}

    def method(model: Any, input_ids: torch.Tensor, own: int = 0, **kwargs: Any) -> str:
        seen.update(kwargs, model=model, ids=input_ids, own=own)
        return "anything"

    model = TableModel()
    ids, mask = torch.tensor([[PAD, 4, 5], [6, 7, 8]]), torch.tensor([[0, 1, 1], [1, 1, 1]])
    options: dict[str, Any] = {"do_sample": True, "num_return_sequences": 2, "top_k": 3}
    result: Any = model.generate(
        ids, attention_mask=mask, custom_generate=method, own=7, max_new_tokens=4, **options
    )
    assert result == "anything"
    assert seen["model"] is model and seen["own"] == 7
    assert seen["ids"].tolist() == ids.repeat_interleave(2, dim=0).tolist()
    assert seen["attention_mask"].tolist() == mask.repeat_interleave(2, dim=0).tolist()
    assert isinstance(seen["logits_processor"], LogitsProcessorList)
    assert [type(one).__name__ for one in seen["logits_processor"]] == ["TopKLogitsWarper"]
    assert isinstance(seen["stopping_criteria"], StoppingCriteriaList)
    assert isinstance(seen["generation_config"], GenerationConfig)
    assert seen["generation_config"].max_length == 7
    assert seen["past_key_values"].get_seq_length() == 0
    assert seen["use_cache"] is True


@for_each("method", [by_steps, at_once, silent])
@for_each("eos_bias", [-1e4, 3.0])
def test_each_way_to_write_it_is_greedy(method: Any, eos_bias: float) -> None:
    model = TableModel(eos_bias=eos_bias, seed=5)
    recorder = Recorder()
    expected = greedy_ids(model, IDS[0].tolist(), 12)
    options: dict[str, Any] = {"max_new_tokens": 12, "streamer": recorder}
    found: Any = model.generate(IDS, custom_generate=method, **options)
    if method is by_steps:
        assert found == {"steps": len(expected)}
    else:
        assert found[0, 3:].tolist() == expected
    assert recorder.puts[0] == IDS[0].tolist()
    assert [token for put in recorder.puts[1:] for token in put] == expected
    assert recorder.ends == 1


def test_a_generator_without_a_result_gives_its_sequences() -> None:
    model = TableModel()
    found: Any = model.generate(
        torch.tensor([[1, 2], [3, 4]]), custom_generate=endless, max_new_tokens=3
    )
    assert found.tolist() == [[1, 2, 65, 65, 65], [3, 4, 65, 65, 65]]


def test_rows_end_on_their_own() -> None:
    def method(model: Any, input_ids: torch.Tensor) -> Generator[Any, None, None]:
        yield torch.tensor([[65], [EOS]])
        yield Step([[66, 67], []])
        yield [EOS, 70]

    found: Any = TableModel().generate(
        torch.tensor([[1], [2]]), custom_generate=method, max_new_tokens=9
    )
    assert found.tolist() == [[1, 65, EOS], [2, EOS, PAD]]


def test_the_older_spelling() -> None:
    options: dict[str, Any] = {"max_new_tokens": 4}
    expected: Any = TableModel().generate(IDS, custom_generate=at_once, **options)
    found: Any = TableModel().generate(IDS, recipe=at_once, **options)
    assert found.tolist() == expected.tolist()


@for_each(
    ("options", "named"),
    [
        ({"custom_generate": 3}, "custom_generate"),
        ({"custom_generate": at_once, "recipe": "x"}, "recipe"),
        ({"custom_generate": "owner/name"}, "trust_remote_code"),
        ({"custom_generate": silent, "bogus": 1}, "bogus"),
        ({"custom_generate": lambda model, ids: (yield [1, 2])}, "custom_generate"),
    ],
)
def test_generate_refuses_wrong_custom_options(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        TableModel().generate(IDS, max_new_tokens=3, **options)


def test_a_method_of_an_encoder_decoder_gets_the_encoders_output(tmp_path: Path) -> None:
    from tests.parity.test_seq2seq import inputs, models

    def method(
        model: Any, input_ids: torch.Tensor, encoder_outputs: Any, **kwargs: Any
    ) -> torch.Tensor:
        for _ in range(5):
            outputs = model(
                encoder_outputs=encoder_outputs,
                attention_mask=kwargs["attention_mask"],
                decoder_input_ids=input_ids,
            )
            input_ids = torch.cat((input_ids, outputs.logits[:, -1:].argmax(-1)), dim=1)
        return input_ids

    _, ours = models(0, tmp_path)
    options: dict[str, Any] = {"max_new_tokens": 5, "min_new_tokens": 5, "eos_token_id": None}
    expected = ours.generate(**inputs(0), **options)
    assert ours.generate(**inputs(0), **options, custom_generate=method).shape == (3, 6)
    assert ours.generate(**inputs(0), custom_generate=method)[:, :2].tolist() == (
        expected[:, :2].tolist()
    )


# Methods from a folder.


def test_the_example_of_the_reference_document_runs(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "model", eos_token_id=None)
    folder = str(write(tmp_path / "method", generate=DOCUMENTED))
    model: Any = load_model(tmp_path / "model")
    model.generation_config.pad_token_id = 0
    inputs = {"input_ids": torch.tensor([[5, 9, 11]]), "attention_mask": torch.ones(1, 3)}
    config = GenerationConfig(max_new_tokens=6, pad_token_id=0)
    for spelling in ("custom_generate", "recipe"):
        found = model.generate(**inputs, generation_config=config, **{spelling: folder})
        assert found.tolist() == model.generate(**inputs, max_new_tokens=6).tolist()
    padded = model.generate(
        **inputs, generation_config=config, custom_generate=folder, left_padding=2
    )
    assert padded[0, :5].tolist() == [0, 0, 5, 9, 11] and padded.shape == (1, 9)
    with pytest.raises(ValueError, match="left_padding"):
        model.generate(**inputs, generation_config=config, custom_generate=folder, left_padding=-1)
    assert model.generate(inputs["input_ids"], generation_config=config, recipe=folder).numel() == 9


def test_a_folder_gets_the_call_as_it_is(tmp_path: Path) -> None:
    code = "def generate(model, **kwargs):\n    return kwargs"
    folder = write(tmp_path, generate=code)
    streamer = Recorder()
    options: dict[str, Any] = {"streamer": streamer, "left_padding": 3, "max_new_tokens": 2}
    found: Any = TableModel().generate(IDS, custom_generate=str(folder), **options)
    assert found["inputs"] is IDS and found["streamer"] is streamer
    assert found["left_padding"] == 3 and found["max_new_tokens"] == 2
    assert found["synced_gpus"] is None
    assert "trust_remote_code" not in found


def test_folder_gets_a_complete_configuration(tmp_path: Path) -> None:
    folder = str(write(tmp_path, generate="def generate(model, **kwargs):\n    return kwargs"))
    model: Any = TableModel(top_k=7)

    def given(**options: Any) -> GenerationConfig:
        found: Any = model.generate(IDS, custom_generate=folder, **options)
        config: GenerationConfig = found["generation_config"]
        return config

    merged = given(max_new_tokens=2, do_sample=True)
    assert (merged.max_new_tokens, merged.max_length, merged.do_sample) == (2, 5, True)
    assert merged.top_k == 7 and merged.top_p == 1.0 and merged is not model.generation_config
    mine = GenerationConfig(max_new_tokens=4, top_k=3)
    assert (given(generation_config=mine).max_length, mine.max_length) == (7, None)
    assert given(generation_config=mine, max_new_tokens=6).max_length == 9
    assert given().max_length == 23  # 20 new tokens, without a warning
    assert given(max_length=8).max_length == 8
    with pytest.raises(InvalidRequestError, match="`top_k` is 'x'"):
        given(top_k="x")
    assert model.generation_config.max_length is None


def test_documented_method_needs_no_configuration(tmp_path: Path) -> None:
    save_checkpoint(tmp_path / "model", eos_token_id=None)
    folder = str(write(tmp_path / "method", generate=DOCUMENTED))
    model: Any = load_model(tmp_path / "model")
    ids = torch.tensor([[5, 9, 11]])
    assert model.generate(ids, recipe=folder).shape == (1, 23)
    assert model.generate(ids, recipe=folder, max_new_tokens=4).shape == (1, 7)
    assert model.generate(input_ids=ids, recipe=folder, max_length=9).shape == (1, 9)


@for_each("asked", [{"max_new_tokens": 4}, {"max_length": 7}])
def test_method_of_a_stream_gets_both_lengths(asked: dict[str, Any]) -> None:
    seen: list[GenerationConfig] = []

    def method(model: Any, input_ids: torch.Tensor, generation_config: Any, **_: Any) -> Any:
        seen.append(generation_config)
        return torch.cat((input_ids, input_ids[:, :1]), dim=1)

    with LLM(TableModel(), tokenizer=byte_tokenizer()) as llm:
        llm.generate(PROMPT, custom_generate=method, **asked)
    assert (seen[0].max_length, seen[0].max_new_tokens) == (7, 4)


def test_a_folder_with_a_generator_takes_steps(tmp_path: Path) -> None:
    code = "def generate(model, input_ids, word=65, **_):\n    while True:\n        yield [word]"
    folder = str(write(tmp_path, generate=code))
    found: Any = TableModel().generate(IDS, custom_generate=folder, max_new_tokens=3, word=70)
    assert found[0, 3:].tolist() == [70, 70, 70]


@pytest.mark.anyio
async def test_a_folder_that_is_not_trusted_does_not_run(tmp_path: Path) -> None:
    folder = str(write(tmp_path, generate="raise AssertionError"))
    options: dict[str, Any] = {"custom_generate": folder, "trust_remote_code": False}
    with pytest.raises(InvalidRequestError, match="forbids to run the code"):
        TableModel().generate(IDS, **options)
    async with make(TableModel()) as llm:
        with pytest.raises(InvalidRequestError, match="forbids to run the code"):
            await llm.generate(PROMPT, **options)


def test_missing_requirements_are_raised_before_any_work(tmp_path: Path) -> None:
    folder = str(write(tmp_path, requirements="foo", generate="raise AssertionError"))
    with pytest.raises(MissingRequirementsError, match=r"foo \(installed: None\)"):
        TableModel().generate(IDS, custom_generate=folder)


# Streams.


def make(model: Any) -> AsyncLLM:
    return AsyncLLM(model, tokenizer=byte_tokenizer())


@pytest.mark.anyio
@for_each("method", [by_steps, at_once, silent])
async def test_a_stream_of_each(method: Any) -> None:
    model = TableModel(eos_bias=3.0, seed=5)
    expected = greedy_ids(model, IDS[0].tolist(), 12)
    async with make(model) as llm:
        stream = llm.stream(PROMPT, custom_generate=method, max_new_tokens=12)
        text = "".join([piece async for piece in stream])
        assert list(stream.result.token_ids) == expected
        assert stream.result.finish_reason == ("stop" if expected[-1] == EOS else "length")
        assert text == bytes(token for token in expected if token < EOS).decode(errors="replace")
        completion = await llm.generate(PROMPT, custom_generate=method, max_new_tokens=12)
        assert list(completion.token_ids) == expected


@pytest.mark.anyio
async def test_a_generator_takes_turns() -> None:
    begun: set[str] = set()
    texts: list[str] = []

    def method(model: Any, input_ids: torch.Tensor, name: str) -> Generator[Any, None, None]:
        begun.add(name)
        while len(begun) < 2:  # for ever, if the other one had no turn meanwhile
            yield Step([[]])
        yield [65]
        yield [66]

    async def read(name: str) -> None:
        options: dict[str, Any] = {"custom_generate": method, "name": name}
        completion = await llm.generate(PROMPT, **options)
        assert completion.finish_reason == "stop"
        texts.append(completion.text)

    async with make(TableModel()) as llm, anyio.create_task_group() as tasks:
        tasks.start_soon(read, "one")
        tasks.start_soon(read, "two")
    assert texts == ["AB", "AB"]


@pytest.mark.anyio
async def test_leaving_closes_the_generator() -> None:
    closed: list[bool] = []

    def method(model: Any, input_ids: torch.Tensor) -> Generator[Any, None, None]:
        try:
            while True:
                yield [65]
        finally:
            closed.append(True)

    async with make(TableModel()) as llm:
        async with llm.stream(PROMPT, custom_generate=method, max_new_tokens=400) as stream:
            async for _ in stream:
                break
        assert set(stream.result.text) == {"A"}
        await llm.generate(PROMPT, max_new_tokens=1)
    assert closed == [True]


@pytest.mark.anyio
@pytest.mark.parametrize("asks", [True, False])
async def test_a_plain_function_is_cancelled(asks: bool) -> None:
    reached = 0

    def method(
        model: Any, input_ids: torch.Tensor, streamer: Any, stopping_criteria: Any, **_: Any
    ) -> torch.Tensor:
        nonlocal reached
        while reached < 400:
            reached += 1
            streamer.put(torch.tensor([65]))
            input_ids = torch.cat((input_ids, torch.tensor([[65]])), dim=1)
            if reached == 5:
                stream.cancel()
            if asks and bool(stopping_criteria(input_ids, None).all()):
                break
        return input_ids

    async with make(TableModel()) as llm:
        stream = llm.stream(PROMPT, custom_generate=method, max_new_tokens=450)
        async for _ in stream:
            pass
        assert stream.result.finish_reason == "cancelled"
        assert stream.result.text == "AAAAA"
    assert reached <= 6


@pytest.mark.anyio
async def test_a_seed_settles_the_draws() -> None:
    def method(model: Any, input_ids: torch.Tensor) -> torch.Tensor:
        return torch.cat((input_ids, torch.randint(97, 122, (1, 9))), dim=1)

    def drawing(model: Any, input_ids: torch.Tensor, draw: Any) -> Generator[Any, None, None]:
        for place in range(9):
            yield draw(torch.zeros(1, 26), place) + 97

    async with make(TableModel()) as llm:
        for function in (method, drawing):
            texts = [
                (await llm.generate(PROMPT, custom_generate=function, seed=seed)).text
                for seed in (1, 1, 2)
            ]
            assert texts[0] == texts[1] != texts[2]


@pytest.mark.anyio
async def test_a_folder_streams(tmp_path: Path) -> None:
    plain = """
import torch
def generate(model, input_ids, generation_config, word=65, **kwargs):
    rest = generation_config.max_length - input_ids.shape[1]
    return torch.nn.functional.pad(input_ids, (0, rest), value=word)
"""
    through = """
def generate(model, input_ids, generation_config, streamer, stopping_criteria, **kwargs):
    return model.generate(input_ids, generation_config=generation_config, streamer=streamer,
                          stopping_criteria=stopping_criteria)
"""
    first, second = write(tmp_path / "a", generate=plain), write(tmp_path / "b", generate=through)
    model = TableModel()
    async with make(model) as llm:
        options: dict[str, Any] = {"custom_generate": str(first), "max_new_tokens": 4, "word": 70}
        assert (await llm.generate(PROMPT, **options)).text == "FFFF"
        with pytest.raises(TypeError, match="word"):
            strict = write(tmp_path / "c", generate="def generate(model, input_ids): return 1")
            await llm.generate(PROMPT, **options | {"custom_generate": str(strict)})
        found = await llm.generate(PROMPT, custom_generate=str(second), max_new_tokens=6)
        assert list(found.token_ids) == greedy_ids(model, IDS[0].tolist(), 6)


@pytest.mark.anyio
@for_each(
    ("options", "named"),
    [
        ({"custom_generate": "owner/name"}, "trust_remote_code"),
        ({"custom_generate": 3}, "custom_generate"),
        ({"custom_generate": at_once, "recipe": "x"}, "recipe"),
        ({"custom_generate": at_once, "logprobs": True}, "logprobs"),
        ({"custom_generate": lambda model, input_ids: "text"}, "custom_generate"),
        ({"custom_generate": silent, "bogus": 1}, "bogus"),
        ({"custom_generate": silent, "input_ids": 1}, "input_ids"),
    ],
)
async def test_streams_refuse_custom_generate_options(options: dict[str, Any], named: str) -> None:
    async with make(TableModel()) as llm:
        with pytest.raises(InvalidRequestError) as caught:
            await llm.generate(PROMPT, max_new_tokens=3, **options)
        assert caught.value.parameter == named


@pytest.mark.anyio
async def test_an_error_of_the_method_reaches_the_reader() -> None:
    def method(model: Any, input_ids: torch.Tensor) -> Generator[Any, None, None]:
        yield [65]
        raise KeyError("mine")

    async with make(TableModel()) as llm:
        stream = llm.stream(PROMPT, custom_generate=method)
        with pytest.raises(KeyError, match="mine"):
            async for _ in stream:
                pass
        assert stream.result.text == "A"


def test_a_repository_replaces_generate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    code = b"def generate(model, inputs=None, **kwargs):\n    return (inputs, sorted(kwargs))"
    with StandInHub({"owner/method": Repository({"custom_generate/generate.py": code})}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
        options: dict[str, Any] = {"custom_generate": "owner/method", "own": 1}
        with pytest.raises(InvalidRequestError, match="trust_remote_code"):
            TableModel().generate(IDS, **options)
        assert not hub.requests
        found: Any = TableModel().generate(IDS, **options, trust_remote_code=True)
    assert found[0] is IDS
    assert "own" in found[1] and "trust_remote_code" not in found[1]


@pytest.mark.anyio
@for_each(
    "given, said",
    [
        ([50.7], r"gives \[50.7\]"),
        ([True], r"gives \[True\]"),
        ([10**7], "gives 10000000: token ids are from 0 to"),
        ([-1], "gives -1: token ids are from 0 to"),
        (None, "gives None"),
        ("text", "gives 'text'"),
        ([], r"gives \[\]"),
        ([65, 66], r"gives \[65, 66\]"),
        (torch.tensor([65], device="meta"), r"gives tensor\(\.\.\., device='meta'"),
        (Step([[65]], ["over"]), r"gives \['over'\].*None, stop, length"),
        (Step([[65]], ["stop", None]), "gives Step"),
        (Step([[65], [66]]), "gives Step"),
        (Step([[10**7]]), "gives 10000000"),
    ],
)
async def test_a_step_that_is_none_is_refused_by_name(given: Any, said: str) -> None:
    def method(model: Any, input_ids: torch.Tensor) -> Generator[Any, None, None]:
        yield given

    async with make(TableModel()) as llm:
        with pytest.raises(InvalidRequestError, match=f"custom_generate.*{said}"):
            await llm.generate(PROMPT, custom_generate=method)


@for_each("given", [[65], [[65]], torch.tensor([[65]]), np.array([65]), [torch.tensor(65)]])
def test_a_step_may_be_of_any_integers(given: Any) -> None:
    def method(model: Any, input_ids: torch.Tensor) -> Generator[Any, None, None]:
        yield given

    found: Any = TableModel().generate(IDS[:1], custom_generate=method, max_new_tokens=4)
    assert found.tolist() == [[*IDS[0].tolist(), 65]]


@pytest.mark.anyio
@for_each(
    "given, said",
    [
        (torch.full((2, 9), 65), r"ids of shape \[2, 9\].*\[B, T\] of 1 rows"),
        (torch.full((1, 40), 10**7), "gives 10000000: token ids are from 0 to"),
        (None, "returned NoneType"),
    ],
)
async def test_a_result_that_a_stream_cannot_be_made_of_is_refused(given: Any, said: str) -> None:
    def method(model: Any, input_ids: torch.Tensor) -> Any:
        return given

    async with make(TableModel()) as llm:
        with pytest.raises(InvalidRequestError, match=said):
            await llm.generate(PROMPT, custom_generate=method, max_new_tokens=30)
