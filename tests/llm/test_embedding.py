"""`embed` gives what transformers gives, in any mix; it is read, left and refused as a stream."""

from __future__ import annotations

import json
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import torch

from asyncgen import LLM, AsyncLLM, Embedding
from asyncgen.checkpoints.embedding_settings import EmbeddingSettings, read_embedding_settings
from asyncgen.errors import (
    ContextLengthError,
    EngineClosedError,
    InvalidRequestError,
    InvalidScoresError,
    ModelLoadError,
    OverloadedError,
)
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint
from tests.doubles.engine import in_thread, no_thread_left
from tests.doubles.models import PATIENCE, Gate, TableModel, byte_tokenizer
from tests.families.arch.families import FAMILIES as DECLARED
from tests.families.arch.families import make as make_family
from tests.llm.test_shared_batch import settled
from tests.models.build import random_config, random_model, random_pair

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["no_thread_left"]

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 8},
    "qwen2": {},
    "qwen3": {},
    "gpt2": {"n_positions": 64, "n_embd": 48, "n_layer": 3, "n_head": 6},
}
LENGTHS = (1, 2, 6, 7, 8, 14, 20, 33, 50, 63, 64)
TEXTS = [[(7 * row + 3 * at) % 90 + 3 for at in range(size)] for row, size in enumerate(LENGTHS)]
PAGE = 7 * 2 * 3 * 2 * 8 * 4
"""Bytes of seven tokens: keys and values, layers, heads, their size, float32."""


def make(model: Any, **options: Any) -> AsyncLLM:
    """An `AsyncLLM` over a model object."""
    return AsyncLLM(model, tokenizer=options.pop("tokenizer", byte_tokenizer()), **options)


def expected(reference: Any, ids: list[int], pooling: str, *, normalize: bool) -> torch.Tensor:
    """Embed a text with transformers."""
    with torch.no_grad():
        states = reference.base_model(torch.tensor([ids])).last_hidden_state[0]
    vector: torch.Tensor = states[-1] if pooling == "last" else states.mean(0)
    return vector / vector.norm() if normalize else vector


def check(
    found: list[Embedding], reference: Any, pooling: str, texts: list[list[int]] = TEXTS
) -> None:
    """Hold normalised embeddings to what transformers gives."""
    assert [one.index for one in found] == list(range(len(texts)))
    for one, ids in zip(found, texts, strict=True):
        wanted = expected(reference, ids, pooling, normalize=True)
        torch.testing.assert_close(one.vector, wanted, atol=1e-5, rtol=0)
        assert one.usage.prompt_tokens == len(ids) and one.usage.completion_tokens == 0


@for_each("family", FAMILIES)
def test_many_lengths_equal_transformers(family: str) -> None:
    reference, core = random_pair(family, **FAMILIES[family])
    with LLM(
        PreTrainedModel(core), tokenizer=byte_tokenizer(), page_size=7, prefill_chunk_size=20
    ) as llm:
        for pooling in ("last", "mean", "last"):  # the second time most of it is in pages
            before = llm.metrics().prefix_cache_hits
            check(llm.embed(TEXTS, pooling=pooling), reference, pooling)
        assert llm.metrics().prefix_cache_hits - before > 100
        raw = llm.embed(TEXTS[5], pooling="mean", normalize=False)
    wanted = expected(reference, TEXTS[5], "mean", normalize=False)
    torch.testing.assert_close(raw.vector, wanted, atol=1e-5, rtol=1e-5)
    assert raw.index == 0 and raw.vector.device.type == "cpu"


@pytest.mark.anyio
@pytest.mark.parametrize("pooling", ["last", "mean"])
async def test_beside_streams(pooling: Any) -> None:
    reference, core = random_pair("llama")
    model = PreTrainedModel(core)
    prompts = [[5 + row, 9, 11 * row % 90] for row in range(3)]
    alone = [
        model.generate(torch.tensor([ids]), max_new_tokens=40, do_sample=False)[0].tolist()
        for ids in prompts
    ]
    answers: dict[int, list[int]] = {}
    found: list[list[Embedding]] = []

    async def ask(number: int) -> None:
        got = await llm.generate(prompts[number], max_new_tokens=40, do_sample=False)
        answers[number] = [*prompts[number], *got.token_ids]

    async def embed() -> None:
        found.append(await llm.embed(TEXTS, pooling=pooling))

    async with make(
        model,
        page_size=7,
        prefill_chunk_size=9,
        kv_cache_memory=20 * PAGE,
    ) as llm:
        async with anyio.create_task_group() as group:
            for number in range(len(prompts)):
                group.start_soon(ask, number)
            group.start_soon(embed)
            group.start_soon(embed)
        await settled(llm)
    assert [answers[number] for number in range(len(prompts))] == alone
    for one in found:
        check(one, reference, pooling)


# Reading, leaving, refusing.


@pytest.mark.anyio
async def test_one_and_many_texts_and_ids() -> None:
    async with AsyncLLM("demo") as llm:
        ids = llm.tokenizer.encode_ids("Once upon a time")
        one = await llm.embed("Once upon a time")
        many = await llm.embed(["Once upon a time", ids, "A fox"])
        assert isinstance(one, Embedding)
        assert [each.vector.equal(one.vector) for each in many] == [True, True, False]
        assert many[2].index == 2 and many[1].usage.prompt_tokens == len(ids)
        assert abs(float(one.vector.norm()) - 1) < 1e-6
        shot = llm.metrics()
        assert dict(shot.finished) == {"stop": 4} and shot.generation_tokens == 0
        assert shot.prompt_tokens == 3 * len(ids) + many[2].usage.prompt_tokens
        assert shot.prefill_time.count == 4 and shot.request_prompt_tokens.count == 4
        await settled(llm)


@pytest.mark.anyio
@for_each(
    ("prompt", "params", "name"),
    [
        ("a", {"pooling": "cls"}, "pooling"),
        ("a", {"normalize": 1}, "normalize"),
        ("a", {"dimensions": 0}, "dimensions"),
        ("a", {"dimensions": 8}, "dimensions"),
        ("a", {"prompt_name": "query"}, "prompt_name"),
        ("a", {"max_time": -1}, "max_time"),
        ("a", {"priority": "high"}, "priority"),
        ("a", {"temperature": 1.0}, "temperature"),
        ("", {}, "prompt"),
        ([], {}, "prompt"),
        (["a", ""], {}, "prompt"),
        ([[1, 2], [1, 5000]], {}, "prompt"),
        ([{"role": "user", "content": "a"}], {}, "prompt"),
        (3, {}, "prompt"),
    ],
)
async def test_bad_input_is_refused_by_name(prompt: Any, params: Any, name: str) -> None:
    async with make(TableModel()) as llm:
        with pytest.raises(InvalidRequestError) as caught:
            await llm.embed(prompt, **params)
        assert caught.value.parameter == name
        await settled(llm)


@pytest.mark.anyio
async def test_a_text_that_is_too_long() -> None:
    async with make(TableModel(context_length=40), kv_cache_memory=64 * 512) as llm:
        assert len((await llm.embed([1] * 40, normalize=False)).vector) == 2
        with pytest.raises(ContextLengthError, match="context holds 40"):
            await llm.embed([1] * 41)
        with pytest.raises(ContextLengthError) as caught:
            await llm.embed(["a", "b" * 1000])
        assert caught.value.__notes__ == ["it is prompt 1 of the list (from 0)"]
    async with make(TableModel(context_length=4000), kv_cache_memory=2 * 512) as llm:
        with pytest.raises(ContextLengthError, match="memory for keys"):
            await llm.embed([1] * 3000)


@pytest.mark.anyio
async def test_cancelled_in_the_middle_of_a_text() -> None:
    gate = Gate()
    async with make(TableModel(hook=gate), prefill_chunk_size=4) as llm:
        async with anyio.create_task_group() as group:
            group.start_soon(llm.embed, [[1] * 60, [2] * 60])
            for passes in range(1, 10):  # one after another, until both texts are in the engine
                await in_thread(partial(gate.wait_arrived, passes))
                metrics = llm.metrics()
                if metrics.requests_running + metrics.requests_waiting == 2:
                    break
                gate.allow(1)
            group.cancel_scope.cancel()
        gate.open()
        await settled(llm)
        assert dict(llm.metrics().finished) == {"cancelled": 2} and gate.arrived < passes + 3


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("params", "kind"), [({"max_time": 0.02}, TimeoutError), ({}, EngineClosedError)]
)
async def test_a_deadline_and_a_close(params: Any, kind: type[Exception]) -> None:
    gate = Gate()
    failures: list[BaseException] = []

    async def embed() -> None:
        try:
            await llm.embed([1] * 60, **params)
        except Exception as error:
            failures.append(error)

    async with make(TableModel(hook=gate), prefill_chunk_size=4) as llm:
        async with anyio.create_task_group() as group:
            group.start_soon(embed)
            await in_thread(lambda: gate.wait_arrived(1))
            if params:
                await anyio.sleep(0.03)
            else:
                llm._thread.stop()
            gate.open()
    assert [type(one) for one in failures] == [kind] and gate.arrived < 4


def _wait_for(condition: Callable[[], bool]) -> None:
    """Wait until something is so that no event tells of."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.anyio
async def test_a_full_queue_refuses_one_and_holds_a_list() -> None:
    gate = Gate()
    options: dict[str, Any] = {"max_running": 1, "max_queue_size": 1}
    async with make(TableModel(hook=gate), **options) as llm:
        async with anyio.create_task_group() as group:
            group.start_soon(llm.embed, [[number] for number in range(1, 8)])
            await in_thread(lambda: gate.wait_arrived(1))
            await in_thread(lambda: _wait_for(lambda: llm._admission.num_waiting == 1))
            with pytest.raises(OverloadedError):
                await llm.embed([1])
            gate.open()
        assert dict(llm.metrics().finished) == {"stop": 7}


@pytest.mark.anyio
async def test_nan_is_the_error_of_its_text_alone() -> None:
    core = random_model(random_config("llama"))
    core.embed_tokens.weight[5] = float("nan")
    core.prepare()
    async with make(PreTrainedModel(core), page_size=4) as llm:
        found: list[Any] = []

        async def embed(ids: list[int], pooling: Any) -> None:
            try:
                found.append(await llm.embed(ids, pooling=pooling))
            except InvalidScoresError as error:
                found.append(error)

        async with anyio.create_task_group() as group:
            for pooling in ("last", "mean"):
                group.start_soon(embed, [3, 5, 7, 8, 9, 10], pooling)
                group.start_soon(embed, [3, 4, 7, 8, 9, 10], pooling)
        assert sorted(type(one).__name__ for one in found) == [
            "Embedding",
            "Embedding",
            "InvalidScoresError",
            "InvalidScoresError",
        ]
        await settled(llm)


@pytest.mark.anyio
async def test_a_model_without_hidden_states_of_rows() -> None:
    model = TableModel()
    model.core.hidden_packed = None  # type: ignore[assignment,method-assign]
    async with make(model) as llm:
        with pytest.raises(InvalidRequestError, match="decoder"):
            await llm.embed("a")


# What a folder says.


def write(folder: Path, name: str, content: object) -> None:
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def modules(*kinds: str) -> list[dict[str, str]]:
    """The content of ``modules.json``."""
    prefix = "sentence_transformers.models."
    return [
        {"path": "" if kind == "Transformer" else f"{place}_{kind}", "type": prefix + kind}
        for place, kind in enumerate(kinds)
    ]


def test_a_folder_of_sentence_transformers(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, vocab_size=260, matryoshka_dimensions=[8, 16])
    write(tmp_path, "modules.json", modules("Transformer", "Pooling", "Normalize"))
    mean = {"pooling_mode_mean_tokens": True, "pooling_mode_lasttoken": False}
    write(tmp_path, "1_Pooling/config.json", {**mean, "include_prompt": True})
    prompts = {"prompts": {"query": "ask: ", "document": ""}, "default_prompt_name": None}
    write(tmp_path, "config_sentence_transformers.json", prompts)
    with LLM(tmp_path, tokenizer=byte_tokenizer()) as llm:
        plain = llm.embed("a fox")
        assert plain.vector.equal(llm.embed("a fox", pooling="mean", normalize=True).vector)
        asked = llm.embed("a fox", prompt_name="query").vector
        assert asked.equal(llm.embed("ask: a fox").vector)
        whole = llm.embed("a fox", normalize=False).vector
        cut = llm.embed("a fox", dimensions=8).vector
        torch.testing.assert_close(cut, whole[:8] / whole[:8].norm())
        for params in ({"dimensions": 9}, {"prompt_name": "other"}):
            with pytest.raises(InvalidRequestError, match=r"one of"):
                llm.embed("a fox", **params)


def settings(folder: Path, config: dict[str, Any] | None = None) -> EmbeddingSettings:
    return read_embedding_settings(folder, config or {})


def test_settings(tmp_path: Path) -> None:
    assert settings(tmp_path) == EmbeddingSettings()
    assert settings(tmp_path, {"is_matryoshka": True}).sizes is None
    write(tmp_path, "modules.json", modules("Transformer", "Pooling"))
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode": "lasttoken"})
    assert (settings(tmp_path).pooling, settings(tmp_path).normalize) == ("last", False)
    write(tmp_path, "1_Pooling/config.json", {"pooling_mode_cls_token": True})
    assert "pooling_mode_cls_token" in (settings(tmp_path).unsupported or "")
    write(tmp_path, "modules.json", modules("Transformer", "Dense"))
    assert "'Dense'" in (settings(tmp_path).unsupported or "")
    for name, content in (
        ("modules.json", {"no": "list"}),
        ("config_sentence_transformers.json", {"prompts": ["a"]}),
        ("config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": "a"}),
    ):
        write(tmp_path, name, content)
        with pytest.raises(ModelLoadError, match=name):
            settings(tmp_path)
        (tmp_path / name).unlink()


@pytest.mark.soak
@pytest.mark.timeout(120)
@pytest.mark.parametrize("family", sorted(DECLARED))
def test_every_family_equals_transformers(family: str, tmp_path: Path) -> None:
    reference = make_family(family, tmp_path)
    options: dict[str, Any] = {"page_size": 7, "prefill_chunk_size": 20, "dtype": "float32"}
    with LLM(tmp_path, tokenizer=byte_tokenizer(), **options) as llm:
        check(llm.embed(TEXTS, pooling="last"), reference, "last")
        check(llm.embed(TEXTS, pooling="mean"), reference, "mean")
