"""One type of options for every door to the engine."""

from __future__ import annotations

import inspect
import re
from dataclasses import FrozenInstanceError, fields
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen.engine.options import EngineOptions, SharedOptions
from asyncgen.engine.requests.stream_params import StreamParams
from asyncgen.engine.scheduling.scheduler import FIFOScheduler
from asyncgen.errors import InvalidRequestError
from asyncgen.llm.llm import AsyncLLM
from asyncgen.llm.opening import ModelSource
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.reference.continuous_batching.mixin import BatchParams, ContinuousMixin
from tests.cases import for_each
from tests.doubles.models import TableModel
from tests.engine.sync_calls import BatchModel

if TYPE_CHECKING:
    from collections.abc import Callable


@for_each(
    ("options", "name"),
    [
        ({"max_running": None}, "max_running"),
        ({"prefill_chunk_size": 0}, "prefill_chunk_size"),
        ({"page_size": 1.5}, "page_size"),
        ({"page_sharing": 1}, "page_sharing"),
        ({"manual_eviction": None}, "manual_eviction"),
        ({"scheduler": "best"}, "scheduler"),
        ({"kv_cache_memory": 0.0}, "kv_cache_memory"),
        ({"use_cuda_graph": 1}, "use_cuda_graph"),
        ({"use_async_batching": "yes"}, "use_async_batching"),
        ({"num_q_padding_intervals": -1}, "num_q_padding_intervals"),
        ({"num_q_padding_intervals": True}, "num_q_padding_intervals"),
        ({"num_kv_padding_intervals": 1.0}, "num_kv_padding_intervals"),
        ({"num_kv_padding_intervals": None}, "num_kv_padding_intervals"),
    ],
    ids=str,
)
def test_options_are_checked(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        EngineOptions(**options)
    assert caught.value.parameter == name


@pytest.mark.parametrize(
    ("options", "name"),
    [({"max_queue_size": 0}, "max_queue_size"), ({"num_threads": True}, "num_threads")],
)
def test_options_of_a_model_are_checked_as_well(options: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidRequestError, match="of at least 1, or None") as caught:
        ModelSource(source="demo", **options)
    assert caught.value.parameter == name


def test_options_that_are_allowed() -> None:
    options = EngineOptions(scheduler=FIFOScheduler, kv_cache_memory=0.5, page_size=None)
    assert (options.max_running, options.kv_cache_memory) == (64, 0.5)
    with pytest.raises(FrozenInstanceError):
        options.max_running = 3  # type: ignore[misc]


def test_options_are_said_once() -> None:
    """The signature names each option with the type and the default of the dataclass."""
    internal = {"page_sharing", "manual_eviction", "num_q_padding_intervals"} | {
        "num_kv_padding_intervals"
    }
    described = {option.name: option for option in fields(ModelSource)}
    parameters = inspect.signature(AsyncLLM).parameters
    assert parameters.keys() - {"unknown"} == described.keys() - internal
    for name in parameters.keys() - {"unknown", "source"}:
        assert parameters[name].default == described[name].default, name
        assert parameters[name].annotation == described[name].type, name
    for name, hint in SharedOptions.__annotations__.items():
        assert hint.__forward_arg__ == described[name].type


def test_the_constructor_documents_each_option() -> None:
    arguments = inspect.cleandoc(AsyncLLM.__init__.__doc__ or "").split("Args:")[1]
    told = set(re.findall(r"^    (\w+): ", arguments.split("Raises:")[0], re.M))
    assert told == inspect.signature(AsyncLLM).parameters.keys() - {"unknown"}


@pytest.mark.parametrize(
    ("door", "keywords", "options"),
    [
        (ContinuousBatchingManager, SharedOptions, EngineOptions),
        (ContinuousMixin.generate_batch, SharedOptions, EngineOptions),
        (ContinuousMixin.init_continuous_batching, SharedOptions, EngineOptions),
    ],
)
def test_signatures_name_every_option(
    door: Callable[..., Any], keywords: type, options: type[EngineOptions]
) -> None:
    parameters = inspect.signature(door).parameters
    defaults = {option.name: option.default for option in fields(options)}
    for name in keywords.__annotations__:
        assert parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        assert parameters[name].default == defaults[name]
    assert "options" not in parameters
    assert ("kwargs" in parameters) == (door is ContinuousMixin.generate_batch)


@for_each(
    ("name", "meant"),
    [
        ("max_runing", "max_running"),
        ("max_num_seqs", "max_running"),
        ("gpu_memory_utilization", "kv_cache_memory"),
        ("dtpye", "dtype"),
    ],
    ids=str,
)
def test_an_unknown_option_is_refused_like_an_unknown_parameter(name: str, meant: str) -> None:
    options: dict[str, Any] = {name: 3}
    with pytest.raises(InvalidRequestError, match=f"did you mean `{meant}`") as caught:
        AsyncLLM("demo", **options)
    assert (caught.value.parameter, caught.value.value) == (name, 3)
    assert isinstance(caught.value, TypeError)


def test_options_of_other_entry_points_are_refused() -> None:
    with pytest.raises(TypeError, match="`page_sharing`"):
        AsyncLLM("demo", page_sharing=False)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="`prefill_chunk_size`"):
        ContinuousBatchingManager(TableModel(), prefill_chunk_size=3)  # type: ignore[call-arg]


def test_a_batch_takes_options_and_parameters_side_by_side() -> None:
    assert not SharedOptions.__annotations__.keys() & StreamParams.__annotations__.keys()
    names = SharedOptions.__annotations__.keys() | StreamParams.__annotations__.keys()
    assert BatchParams.__annotations__.keys() == names - {"generation_config"}

    outputs = BatchModel().generate_batch([[1, 2]], max_running=1, max_new_tokens=3, page_size=4)
    assert [len(output.generated_tokens) for output in outputs.values()] == [3]
