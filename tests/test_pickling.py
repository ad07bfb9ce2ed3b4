"""Everything that crosses a process: pickled there, and the same here.

The list is complete: a public exception, or a value of `asyncgen.types`, that is not in it fails.
"""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen import (
    AsyncgenError,
    CacheFullError,
    ChatTemplateError,
    Completion,
    ContextLengthError,
    DefaultLengthWarning,
    Embedding,
    EngineClosedError,
    EngineDiedError,
    EngineReentryError,
    GenerationConfig,
    GenerationOutput,
    HistogramSnapshot,
    InvalidRequestError,
    InvalidScoresError,
    MetricsSnapshot,
    MissingRequirementsError,
    ModelLoadError,
    OverloadedError,
    RequestStatus,
    Sample,
    SynthIDTextWatermarkingConfig,
    Timing,
    TokenEvent,
    Tokenizer,
    TokenLogprob,
    ToolCall,
    ToolCallDelta,
    TopLogprob,
    UnsupportedModelError,
    Usage,
    WatermarkingConfig,
    errors,
    types,
)
from asyncgen.engine.metrics import EngineMetrics
from asyncgen.families.config.editable_config import EditableConfig
from asyncgen.families.config.model_config import ModelConfig
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable

ENTRY = TokenLogprob(1, "a", -0.5, (TopLogprob(1, "a", -0.5), TopLogprob(2, "b", -1.5)))
USAGE = Usage(3, 1, 2, "0" * 32, True)
TIMING = Timing(0.1, 0.2, 1.0, 5.0)


def figures() -> MetricsSnapshot:
    """Return the metrics of an engine that has answered something."""
    recorder = EngineMetrics(generation_tokens=7, finished={"stop": 2, "error": 1})
    recorder.requests_running, recorder.requests_waiting = 1, 2
    recorder.pages_used, recorder.pages_total = 3, 4
    recorder.step_tokens.observe(5)
    return recorder.snapshot()


def noted(error: Exception) -> Exception:
    """An error with an attribute of its raiser's, and a note."""
    error.request = "r-1"  # type: ignore[attr-defined]
    error.add_note("prompt 3 of 4")
    return error


VALUES: list[Any] = [
    TopLogprob(1, "a", -0.5),
    ENTRY,
    USAGE,
    TIMING,
    TokenEvent(0, (1,), "a", (ENTRY,), 0.5, "stop", "x", USAGE, TIMING),
    Sample(0, "a", (1,), "stop", "x", (ENTRY,)),
    Completion((Sample(0, "a", (1,), "stop"), Sample(1, "b", (2,), "length")), USAGE, TIMING),
    ToolCall("c1", "weather", "{}"),
    ToolCallDelta(0, "c1", "weather", '{"a"', "no JSON"),
    Embedding(3, torch.tensor([0.5, -0.25]), USAGE, TIMING),
    HistogramSnapshot((1.0, 2.0), (0, 3, 1), 7.5),
    figures(),
    GenerationOutput("r-1", [1], [2, 3], [-0.5], "no", RequestStatus.FINISHED, timestamps=[1.0]),
    GenerationConfig(do_sample=True, bad_words_ids=[[1]], eos_token_id=[2, 3], stop_strings=["x"]),
    GenerationConfig(watermarking_config=WatermarkingConfig(bias=3.0)),
    GenerationConfig(watermarking_config=SynthIDTextWatermarkingConfig(ngram_len=5, keys=[1, 2])),
]
"""What can be compared as it is."""

ERRORS: list[Exception] = [
    AsyncgenError("no"),
    CacheFullError("max_cache_len", 8, "enough for every token"),
    ChatTemplateError("the template refuses this"),
    ContextLengthError("max_length", 9, "at most 8"),
    EngineClosedError("closed"),
    EngineDiedError("the decode thread ended"),
    EngineReentryError("it asks itself"),
    InvalidRequestError("logits_processor", object(), "a processor"),  # its address is in the text
    InvalidRequestError("top_p", 1.5, "from 0 to 1"),
    InvalidScoresError("TopPLogitsWarper", "it bans everything"),
    MissingRequirementsError("install x"),
    asyncgen.UnsupportedFrameworkError("TFLogitsProcessor", "asyncgen.LogitsProcessor"),
    ModelLoadError("no `config.json`"),
    OverloadedError("the queue is full", 2.5, is_degraded=True),
    UnsupportedModelError("`model_type` is 'x'"),
    DefaultLengthWarning("20 new tokens"),
]

COPIES: list[Callable[[Any], Any]] = [lambda one: pickle.loads(pickle.dumps(one)), copy.copy]


def _is_public_error(found: object) -> bool:
    return inspect.isclass(found) and issubclass(found, BaseException)


def test_the_list_is_complete() -> None:
    public = [getattr(asyncgen, name) for name in asyncgen.__all__]
    public += [getattr(errors, name) for name in errors.__all__]
    wanted = {found for found in public if _is_public_error(found)}
    wanted |= {
        found
        for found in vars(types).values()
        if inspect.isclass(found) and dataclasses.is_dataclass(found)
    }
    assert wanted <= {type(one) for one in (*VALUES, *ERRORS)}


@for_each("value", VALUES, ids=lambda one: type(one).__name__)
@for_each("twin_of", COPIES)
def test_values(value: Any, twin_of: Callable[[Any], Any]) -> None:
    twin = twin_of(value)
    assert type(twin) is type(value)
    assert twin == value
    assert repr(twin) == repr(value)


@for_each("error", ERRORS, ids=lambda one: type(one).__name__)
@for_each("twin_of", COPIES)
def test_errors(error: Exception, twin_of: Callable[[Any], Any]) -> None:
    error = noted(copy.copy(error))
    twin = twin_of(error)
    assert type(twin) is type(error)
    assert str(twin) == str(error)
    assert twin.args == error.args
    if type(vars(error).get("value")) is object:  # equal to nothing but itself
        vars(twin)["value"] = vars(error)["value"]
    assert vars(twin) == vars(error)
    assert twin.__notes__ == ["prompt 3 of 4"]
    assert getattr(twin, "msg", None) == getattr(error, "msg", None)


def test_figures_are_read_only_there_too() -> None:
    twin = pickle.loads(pickle.dumps(figures()))
    with pytest.raises(TypeError):
        twin.finished["stop"] = 3
    assert dataclasses.replace(twin, threads_abandoned=1).finished == {"stop": 2, "error": 1}


def test_the_configuration_of_a_model() -> None:
    config = asyncgen.load_model("demo").config
    config.eos_token_id = [1, 2]
    config.mine = {"a": 1}
    twin = pickle.loads(pickle.dumps(config))
    assert type(twin) is type(config) is EditableConfig
    assert twin == config
    assert twin.to_dict() == config.to_dict()
    built = ModelConfig.from_hf(config.to_dict())
    assert pickle.loads(pickle.dumps(built)) == built
    assert pickle.loads(pickle.dumps(built)).raw == built.raw


def test_a_tokenizer() -> None:
    tokenizer = asyncgen.load_tokenizer("demo")
    tokenizer.padding_side = "right"
    twin: Tokenizer = pickle.loads(pickle.dumps(tokenizer))
    text = "Once upon a time 🦊 there was"
    ids = tokenizer.encode_ids(text)
    assert twin.encode_ids(text) == ids
    assert twin.decode(ids) == tokenizer.decode(ids)
    messages = [{"role": "user", "content": "Who?"}]
    assert twin.apply_chat_template(messages) == tokenizer.apply_chat_template(messages)
    own, theirs = dict(vars(tokenizer)), dict(vars(twin))
    backends = [found.pop("backend_tokenizer").to_str() for found in (own, theirs)]
    assert own == theirs
    assert backends[0] == backends[1]
