"""`ContinuousBatchingConfig` says to the engine what the older arguments say."""

from __future__ import annotations

import inspect
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

from asyncgen.cache.paged_storage import page_bytes
from asyncgen.engine.kv_cache.block_pool import BlockPool
from asyncgen.engine.options import EngineOptions
from asyncgen.engine.scheduling.scheduler import FIFOScheduler, PrefillFirstScheduler
from asyncgen.engine.setup.assembly import _make_scheduler
from asyncgen.errors import InvalidRequestError, OverloadedError
from asyncgen.generation.config import CompileConfig, GenerationConfig
from asyncgen.reference.continuous_batching.batching_config import (
    ContinuousBatchingConfig,
    _tell_not_compiled,
)
from asyncgen.reference.continuous_batching.manager import ContinuousBatchingManager
from asyncgen.reference.load_model import PreTrainedModel, load_model
from tests.cases import for_each
from tests.doubles.checkpoints import save_checkpoint

if TYPE_CHECKING:
    from pathlib import Path

PROMPTS = [[3, 4, 5], [6] * 20, [7, 8], [3, 4, 5]]


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    save_checkpoint(tmp_path, eos_token_id=None)
    return load_model(tmp_path, device="cpu")


def options_of(model: PreTrainedModel, **fields: Any) -> EngineOptions:
    """Return the engine options of a manager for a configuration."""
    manager = ContinuousBatchingManager(
        model, continuous_batching_config=ContinuousBatchingConfig(**fields)
    )
    return manager.frontend.options


def test_names_and_defaults_are_the_references() -> None:
    transformers = pytest.importorskip("transformers")
    kinds = (ContinuousBatchingConfig, transformers.ContinuousBatchingConfig)
    ours, theirs = (
        [(one.name, one.default) for one in inspect.signature(kind).parameters.values()]
        for kind in kinds
    )
    assert ours == theirs


def test_batching_config_sets_the_engine_options(model: PreTrainedModel) -> None:
    page = page_bytes(model.core.config, 16, model.dtype)
    assert options_of(model) == EngineOptions(page_size=256)
    options = options_of(
        model,
        page_size=16,
        num_blocks=9,
        max_batch_tokens=48,
        max_requests_per_batch=8,
        allow_block_sharing=False,
        use_async_batching=True,
        use_cuda_graph=(False, False),
        q_padding_interval_size=3,
        kv_padding_interval_size=20,
        scheduler_type="prefill_first",
    )
    assert options == EngineOptions(
        page_size=16,
        kv_cache_memory=9 * page,
        max_running=8,
        prefill_chunk_size=40,
        prefix_caching=False,
        page_sharing=False,
        use_async_batching=True,
        use_cuda_graph=False,
        num_q_padding_intervals=3,
        num_kv_padding_intervals=4,
        scheduler="prefill_first",
    )
    assert options_of(model, block_size=32).page_size == 32
    half = options_of(model, max_memory_percent=0.5).kv_cache_memory
    assert isinstance(half, int) and half > 9 * page
    both = options_of(model, max_memory_percent=0.5, num_blocks=2).kv_cache_memory
    assert both == 2 * page_bytes(model.core.config, 256, model.dtype)


@pytest.mark.parametrize("most", [1, 2, 5, 64, 1000])
@pytest.mark.parametrize("rows", [None, 1, 3, 500])
def test_a_step_has_no_more_tokens(model: PreTrainedModel, most: int, rows: int | None) -> None:
    options = options_of(model, max_batch_tokens=most, max_requests_per_batch=rows)
    assert options.max_running <= (64 if rows is None else rows)
    # A row that decodes is one that does not read its prompt.
    assert options.prefill_chunk_size is not None
    assert options.max_running + options.prefill_chunk_size <= max(most, 2)


@for_each(
    ("name", "margin", "spare"),
    [("fifo", None, 2), ("fifo", 0.5, 5), ("prefill_first", None, 0), ("prefill_first", 0.3, 3)],
)
def test_a_safety_margin_keeps_pages_for_running_requests(
    model: PreTrainedModel, name: str, margin: float | None, spare: int
) -> None:
    fields = {"scheduler_type": name, "safety_margin": margin, "page_size": 4, "num_blocks": 10}
    options = options_of(model, **fields)
    assert options == options_of(model, **fields)
    scheduler = _make_scheduler(options, BlockPool(10, 4))
    assert scheduler.num_spare == spare
    assert isinstance(scheduler, {"fifo": FIFOScheduler}.get(name, PrefillFirstScheduler))


@for_each(
    "fields",
    [
        {"varlen_compile_config": CompileConfig()},
        {"decode_compile_config": {"mode": "default", "dynamic": True}},
        {"default_compile_level": 2},
        {"use_default_compile_configs": True},
    ],
)
def test_compilations_are_accepted_and_change_nothing(
    model: PreTrainedModel, fields: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    config = ContinuousBatchingConfig(**fields)
    _tell_not_compiled.cache_clear()
    caplog.clear()
    settings = GenerationConfig(max_new_tokens=3)
    found = model.generate_batch(PROMPTS, settings, continuous_batching_config=config)
    model.generate_batch(PROMPTS, settings, continuous_batching_config=config)
    assert caplog.text.count("compile configurations change nothing") == 1
    plain = model.generate_batch(PROMPTS, settings)
    for name, output in plain.items():
        assert found[name].generated_tokens == output.generated_tokens


def test_fields_without_effect_are_accepted(model: PreTrainedModel) -> None:
    assert options_of(model, max_blocks_per_request=32, max_cached_graphs=8) == options_of(model)
    assert options_of(model, use_default_compile_configs=False) == options_of(model)
    off = {"cpu_offload_space": None, "cpu_offload_space_safety_threshold": 0.0}
    assert options_of(model, **off) == options_of(model)
    assert ContinuousBatchingConfig(use_cuda_graph=(True, True)).use_cuda_graph == (True, True)


def test_a_configuration_inside_that_of_generation_is_used(model: PreTrainedModel) -> None:
    with pytest.warns(FutureWarning, match="inside a GenerationConfig is deprecated"):
        inside = GenerationConfig(
            max_new_tokens=4,
            continuous_batching_config=ContinuousBatchingConfig(page_size=8, return_logprobs=True),
        )
    outputs = model.generate_batch(PROMPTS, inside)
    plain = model.generate_batch(PROMPTS, GenerationConfig(max_new_tokens=4))
    for name, output in plain.items():
        assert outputs[name].generated_tokens == output.generated_tokens
        assert len(outputs[name].logprobs) == 4 and output.logprobs == []
    for door in (ContinuousBatchingManager, PreTrainedModel.init_continuous_batching):
        manager: Any = door(model, inside)
        assert manager.frontend.options.page_size == 8
        given = ContinuousBatchingConfig(page_size=4)
        manager = door(model, inside, continuous_batching_config=given)
        assert manager.frontend.options.page_size == 4
    assert inside.continuous_batching_config is not None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        ids = model.generate(torch.tensor([PROMPTS[0]]), generation_config=inside)
    assert isinstance(ids, torch.Tensor)
    assert ids[0, len(PROMPTS[0]) :].tolist() == plain["req_0"].generated_tokens


def test_the_same_tokens(model: PreTrainedModel) -> None:
    settings = GenerationConfig(max_new_tokens=6)
    plain = model.generate_batch(PROMPTS, settings, progress_bar=False)
    config = ContinuousBatchingConfig(
        page_size=4, num_blocks=24, max_batch_tokens=5, return_logprobs=True
    )
    found = model.generate_batch(
        PROMPTS, settings, continuous_batching_config=config, progress_bar=False
    )
    for name, output in plain.items():
        assert found[name].generated_tokens == output.generated_tokens
        assert len(found[name].logprobs) == 6 and output.logprobs == []
    with model.continuous_batching_context_manager(
        settings, continuous_batching_config=config
    ) as manager:
        manager.add_request(PROMPTS[0], request_id="one")
        result = manager.get_result("one", timeout=60)
    assert result is not None
    assert result.generated_tokens == plain["req_0"].generated_tokens
    assert len(result.logprobs) == 6


def test_a_seed(model: PreTrainedModel) -> None:
    settings = GenerationConfig(max_new_tokens=8, do_sample=True)
    config = ContinuousBatchingConfig(seed=11)
    torch.manual_seed(0)
    first = model.generate_batch(
        PROMPTS, settings, continuous_batching_config=config, progress_bar=False
    )
    again = model.generate_batch(
        PROMPTS, settings, continuous_batching_config=config, progress_bar=False
    )
    other = model.generate_batch(PROMPTS, settings, seed=11, progress_bar=False)
    tokens = [[one.generated_tokens for one in run.values()] for run in (first, again, other)]
    assert tokens[0] == tokens[1] == tokens[2]
    assert tokens[0][0] != tokens[0][3]  # equal prompts do not draw alike


def test_a_full_queue(model: PreTrainedModel) -> None:
    config = ContinuousBatchingConfig(max_queue_size=1, max_requests_per_batch=1)
    manager = ContinuousBatchingManager(model, continuous_batching_config=config)
    with pytest.raises(OverloadedError):
        manager.add_requests([[3]] * 9)


@for_each(
    ("fields", "message"),
    [
        ({"page_size": 0}, "`page_size` is 0: must be a whole number of at least 1"),
        ({"page_size": None}, "`page_size` is None"),
        ({"page_size": 16, "block_size": 32}, "`block_size` is 32: `page_size` is 16"),
        ({"max_memory_percent": 90}, "is 90: must be a number above 0 and at most 1"),
        ({"max_blocks_per_request": -4}, "`max_blocks_per_request` is -4"),
        ({"use_cuda_graph": (True, False)}, "prompts alone are not recorded"),
        ({"use_cuda_graph": (True, True, True)}, "a pair for prompts and decode steps"),
        ({"varlen_compile_config": "fast"}, "is 'fast': must be a CompileConfig"),
        ({"decode_compile_config": 3}, "`decode_compile_config` is 3"),
        ({"default_compile_level": 4}, "`default_compile_level` is 4"),
        ({"scheduler_type": "lifo"}, 'is .lifo.: must be "fifo" or "prefill_first"'),
        ({"cpu_offload_space": 4.0}, "`cpu_offload_space` is 4.0"),
        ({"cpu_offload_space": None}, "`cpu_offload_space` is None"),
        ({"safety_margin": 1.2}, "`safety_margin` is 1.2"),
        ({"seed": "1"}, "`seed` is '1'"),
        ({"return_logprobs": 1}, "`return_logprobs` is 1"),
    ],
)
def test_fields_that_are_refused(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequestError, match=message):
        ContinuousBatchingConfig(**fields)


def test_options_given_twice_are_refused(model: PreTrainedModel) -> None:
    config = ContinuousBatchingConfig()
    doors: Any = (model.init_continuous_batching, lambda **given: model.generate_batch([], **given))
    for door in doors:
        for option in ({"page_size": 4}, {"allow_block_sharing": False},
                       {"num_q_padding_intervals": 2}):  # fmt: skip
            name = next(iter(option))
            with pytest.raises(InvalidRequestError, match=f"`{name}` .*says it already"):
                door(continuous_batching_config=config, **option)
        with pytest.raises(InvalidRequestError, match="give a ContinuousBatchingConfig"):
            door(continuous_batching_config={"page_size": 4})
    with pytest.raises(InvalidRequestError, match="`max_queue_size` is 3"):
        model.init_continuous_batching(max_queue_size=3, continuous_batching_config=config)
