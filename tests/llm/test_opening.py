"""Test what the decode thread opens (bundled model, folders, objects) and what it refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.engine.lane.foreign_run import ForeignRun
from asyncgen.engine.lane.strategy_run import StepRun
from asyncgen.errors import AsyncgenError, InvalidRequestError
from asyncgen.llm.opening import ModelSource, open_engine
from tests.doubles.models import TableModel, byte_tokenizer
from tests.doubles.strategies import tiny_model
from tests.engine.making import request_for

if TYPE_CHECKING:
    from pathlib import Path


def source_of(source: Any, tokenizer: Any = None, **options: Any) -> ModelSource:
    """A source with the defaults of `AsyncLLM`."""
    given: dict[str, Any] = {
        "device": None,
        "dtype": None,
        "num_threads": None,
        "revision": None,
        "token": None,
        "max_running": 4,
        "prefill_chunk_size": 16,
        **options,
    }
    return ModelSource(source=source, tokenizer=tokenizer, **given)


def test_objects_are_taken_as_they_are() -> None:
    model, tokenizer = TableModel(), byte_tokenizer()
    engine, opened = open_engine(source_of(model, tokenizer), bool)
    assert opened.model is model  # type: ignore[comparison-overlap]
    assert opened.tokenizer is tokenizer
    request, sink = request_for(model=model, max_new_tokens=2)
    engine.add(request)
    while engine.has_work:
        engine.step()
    assert len(sink.events) == 2
    assert type(engine._lane._start(request)) is StepRun


def test_an_object_without_a_core_is_foreign() -> None:
    class Foreign:
        def generate(self, **kwargs: Any) -> None: ...

    engine, _ = open_engine(source_of(Foreign(), byte_tokenizer()), bool)
    assert type(engine._lane._start(request_for()[0])) is ForeignRun


def test_the_bundled_model() -> None:
    _, opened = open_engine(source_of("demo", dtype="float32", num_threads=1), bool)
    assert opened.model.dtype is torch.float32
    assert opened.tokenizer.encode_ids("Hello")


def test_a_tokenizer_from_elsewhere() -> None:
    _, opened = open_engine(source_of(TableModel(), "demo"), bool)
    assert opened.tokenizer.encode_ids("Hello")


def test_no_such_folder(tmp_path: Path) -> None:
    with pytest.raises(AsyncgenError):
        open_engine(source_of(tmp_path / "nothing"), bool)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"max_running": 0}, "max_running"),
        ({"prefill_chunk_size": True}, "prefill_chunk_size"),
        ({"num_threads": -1}, "num_threads"),
        ({"num_threads": "all"}, "num_threads"),
    ],
)
def test_numbers_are_checked_before_loading(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        source_of("nowhere", **options)
    assert caught.value.parameter == name


@pytest.mark.parametrize("name", ["device", "dtype", "revision"])
def test_an_object_leaves_nothing_to_choose(name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        source_of(TableModel(), byte_tokenizer(), **{name: "cpu"})
    assert caught.value.parameter == name


def test_an_object_needs_a_tokenizer() -> None:
    with pytest.raises(InvalidRequestError) as caught:
        source_of(TableModel())
    assert caught.value.parameter == "tokenizer"


def test_files_that_say_no_cache_share_the_batch_all_the_same(tmp_path: Path) -> None:
    tiny_model(use_cache=False).save_pretrained(tmp_path)
    file = tmp_path / "generation_config.json"
    file.write_text('{"use_cache": false}', encoding="utf-8")
    _, opened = open_engine(source_of(tmp_path, byte_tokenizer(), dtype="float32"), bool)
    request, _ = request_for(model=opened.model, max_new_tokens=2)
    assert request.alone is None
    asked, _ = request_for(model=opened.model, max_new_tokens=2, use_cache=False)
    assert asked.alone is not None
