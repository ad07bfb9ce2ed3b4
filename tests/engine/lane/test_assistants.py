"""Draft models of the engine: loaded once on the decode thread, refused early where possible."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.engine.lane.assistants import Assistants
from asyncgen.engine.requests.params import resolve_params
from asyncgen.errors import InvalidRequestError, ModelLoadError
from asyncgen.generation.config import GenerationConfig
from asyncgen.llm.llm import AsyncLLM
from asyncgen.reference.load_model import load_model
from asyncgen.text.tokenizer import Tokenizer
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.engine import greedy_ids, no_thread_left, sampled_ids
from tests.doubles.models import TableModel, byte_tokenizer
from tests.doubles.tokenizers import save_tokenizer
from tests.ids import readable

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.anyio
__all__ = ["no_thread_left"]

PROMPT = [1, 2, 3, 1, 2]


def open_llm(model: Any, **options: Any) -> AsyncLLM:
    return AsyncLLM(model, tokenizer=byte_tokenizer(), **options)


def params_of(**given: Any) -> Any:
    return resolve_params(given, GenerationConfig(), prompt_length=3, context_length=64)


def test_each_name_is_loaded_once() -> None:
    loaded: list[Any] = []

    def load(source: Any) -> Any:
        loaded.append(source)
        return TableModel()

    assistants = Assistants(load, lambda source: byte_tokenizer())
    params = params_of(assistant_model="draft", assistant_tokenizer="words")
    own = byte_tokenizer()
    first, second = (assistants.assistance(params, own) for _ in range(2))
    assert loaded == ["draft"]
    assert first.model is second.model
    assert first.assistant_tokenizer is second.assistant_tokenizer
    assert first.tokenizer is own
    assert assistants.assistance(params_of(assistant_model="draft"), own).tokenizer is None


async def test_every_way_to_draft_gives_greedy_tokens() -> None:
    model, draft = TableModel(), TableModel(seed=4)
    async with open_llm(model, prefill_chunk_size=2) as llm:
        for options in (
            {"assistant_model": draft},
            {"assistant_model": draft, "num_assistant_tokens_schedule": "heuristic"},
            {"prompt_lookup_num_tokens": 3},
        ):
            pieces: list[int] = []
            stream = llm.stream(PROMPT, max_new_tokens=20, **options)
            async for event in stream.events():
                pieces += event.token_ids
            assert pieces == greedy_ids(model, PROMPT, 20)
            assert stream.result.usage.completion_tokens == 20
    assert draft.core.threads == {"asyncgen-decode"}


async def test_a_folder_is_loaded_on_the_decode_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import asyncgen.reference.load_model as pretrained

    save_checkpoint(tmp_path / "target", vocab_size=260)
    save_checkpoint(tmp_path / "draft", vocab_size=260, num_hidden_layers=1)
    threads: list[str] = []
    load = pretrained.load_model

    def watched(source: Any, **options: Any) -> Any:
        threads.append(threading.current_thread().name)
        return load(source, **options)

    monkeypatch.setattr(pretrained, "load_model", watched)
    async with AsyncLLM(str(tmp_path / "target"), tokenizer=byte_tokenizer()) as llm:
        plain = await llm.generate(PROMPT, max_new_tokens=10)
        for _ in range(2):
            found = await llm.generate(
                PROMPT, max_new_tokens=10, assistant_model=str(tmp_path / "draft")
            )
            assert found.token_ids == plain.token_ids
        exited = await llm.generate(PROMPT, max_new_tokens=10, assistant_early_exit=1)
        assert exited.token_ids == plain.token_ids
        with pytest.raises(ModelLoadError):
            await llm.generate(PROMPT, assistant_model=str(tmp_path / "nothing"))
        assert (await llm.generate(PROMPT, max_new_tokens=3)).token_ids == plain.token_ids[:3]
    assert threads == ["asyncgen-decode"] * 3


async def test_draws_do_not_depend_on_earlier_requests() -> None:
    model, draft = TableModel(), TableModel(seed=0)
    draft.core.table = model.core.table * 0.7
    options: dict[str, Any] = {"max_new_tokens": 25, "seed": 3, "temperature": 1.0, "top_k": 0}
    async with open_llm(model) as llm:
        first = await llm.generate(PROMPT, assistant_model=draft, **options)
        await llm.generate([9, 8], max_new_tokens=40, assistant_model=draft)
        again = await llm.generate(PROMPT, assistant_model=draft, **options)
        looked_up = await llm.generate(PROMPT, prompt_lookup_num_tokens=3, **options)
    assert first.token_ids == again.token_ids
    assert list(looked_up.token_ids) == sampled_ids(model, PROMPT, 25, seed=3)


async def test_a_stop_string_inside_a_draft_ends_where_greedy_ends() -> None:
    text = "one two three four"
    model = TableModel(script=text, prompt_length=len(PROMPT))
    draft = TableModel(script=text, prompt_length=len(PROMPT))
    for names in ({"stop": "o thr"}, {"stop_strings": ["two"]}):
        async with open_llm(model) as llm:
            plain = await llm.generate(PROMPT, logprobs=True, **names)
            found = await llm.generate(
                PROMPT,
                logprobs=True,
                assistant_model=draft,
                **names,
            )
        assert found.text == plain.text
        assert found.token_ids == plain.token_ids
        assert found.logprobs == plain.logprobs
        assert found.finish_reason == plain.finish_reason == "stop"


@pytest.mark.parametrize(
    "options",
    [
        {"penalty_alpha": 0.6, "top_k": 4},
        {"penalty_alpha": 0.6, "top_k": 4, "low_memory": True},
        {"dola_layers": "low"},
        {"dola_layers": [0, 1], "temperature": 0.8, "seed": 3},
    ],
    ids=readable,
)
async def test_contrastive_streams_equal_generate(options: dict[str, Any], tmp_path: Path) -> None:
    save_checkpoint(tmp_path, vocab_size=260)
    model = load_model(tmp_path)
    async with open_llm(model, prefill_chunk_size=2) as llm:
        stream = llm.stream(PROMPT, max_new_tokens=12, **options)
        text = "".join([piece async for piece in stream])
        again = await llm.generate(PROMPT, max_new_tokens=12, **options)
    assert stream.result.token_ids == again.token_ids
    assert text == again.text == byte_tokenizer().decode(list(again.token_ids), True)
    if "temperature" not in options:
        expected = model.generate(torch.tensor([PROMPT]), max_new_tokens=12, **options)
        assert list(again.token_ids) == expected[0, len(PROMPT) :].tolist()  # type: ignore[index]


@pytest.mark.parametrize(
    "text", ["The quick bro", "Hello world, h", "Hel ", "Hello w  ", "def f(", "x"]
)
async def test_healed_text_continues_the_visible_prompt(text: str, tmp_path: Path) -> None:
    words = Tokenizer.from_folder(save_tokenizer(tmp_path / "tokenizer", "byte_level"))
    save_checkpoint(tmp_path / "model", vocab_size=len(words))
    model = load_model(tmp_path / "model")
    async with AsyncLLM(model, tokenizer=words, prefill_chunk_size=2) as llm:
        stream = llm.stream(text, max_new_tokens=6, token_healing=True)
        pieces = [piece async for piece in stream]
        several = await llm.generate(
            text, max_new_tokens=6, token_healing=True, n=2, seed=1, top_k=9
        )
    ids = torch.tensor([words.encode_ids(text)])
    found = model.generate(ids, max_new_tokens=6, token_healing=True, tokenizer=words)
    whole = words.decode(found[0].tolist(), skip_special_tokens=True)
    assert list(stream.result.token_ids) == found[0, -6:].tolist()  # type: ignore[index]
    # The model may choose other white space than the prompt's: then it stands twice.
    shown = text if whole.startswith(text) else text.rstrip()
    assert whole.startswith(shown)
    assert "".join(pieces) == whole[len(shown) :]
    assert len(several.samples) == 2


async def test_messages_are_not_healed() -> None:
    async with open_llm(TableModel()) as llm:
        with pytest.raises(InvalidRequestError, match="token_healing"):
            await llm.generate([{"role": "user", "content": "x"}], token_healing=True)


REFUSED: list[tuple[str, dict[str, Any]]] = [
    ("assistant_model", {"assistant_model": ..., "penalty_alpha": 0.6, "top_k": 4}),
    ("penalty_alpha", {"penalty_alpha": 0.6, "do_sample": True}),
    ("low_memory", {"low_memory": True}),
    ("dola_layers", {"dola_layers": "middle"}),
    ("dola_layers", {"dola_layers": "low", "prompt_lookup_num_tokens": 3}),
    ("prompt_lookup_num_tokens", {"assistant_model": ..., "prompt_lookup_num_tokens": 3}),
    ("assistant_tokenizer", {"assistant_tokenizer": "demo"}),
    ("num_assistant_tokens", {"num_assistant_tokens": 3}),
    ("num_assistant_tokens", {"num_assistant_tokens": 3, "prompt_lookup_num_tokens": 3}),
    ("num_return_sequences", {"assistant_model": ..., "n": 2, "temperature": 1.0}),
    ("assistant_model", {"assistant_model": object()}),
    ("assistant_early_exit", {"assistant_early_exit": 9}),
    ("num_assistant_tokens", {"assistant_model": ..., "num_assistant_tokens": 0}),
]


@for_each(("name", "options"), REFUSED)
async def test_unsupported_assistant_options_are_refused_before_any_forward(
    name: str, options: dict[str, Any]
) -> None:
    model, draft = TableModel(), TableModel()
    options = {key: draft if value is ... else value for key, value in options.items()}
    async with open_llm(model) as llm:
        with pytest.raises(InvalidRequestError, match=name):
            await llm.generate(PROMPT, max_new_tokens=5, **options)
    assert model.num_forwards == draft.num_forwards == 0
