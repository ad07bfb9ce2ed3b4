"""``generate_batch`` and the manager beside those of transformers: tokens, names, examples."""

from __future__ import annotations

import importlib
import inspect
import logging
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.reference.pretrained_model import PreTrainedModel
from tests.doubles.engine import no_thread_left
from tests.models.build import random_ids, random_pair

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["no_thread_left"]

transformers = pytest.importorskip("transformers")

PROMPTS = [random_ids(1, length, seed=length)[0].tolist() for length in (3, 17, 1, 30, 5, 17, 8, 2)]
NEW = 12


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """The reference warns about itself, and writes to the log."""
    logging.disable(logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
    logging.disable(logging.NOTSET)


def config_of(library: Any, **fields: Any) -> Any:
    """A configuration of either library: greedy, of a fixed length."""
    settings = {"max_new_tokens": NEW, "do_sample": False, "eos_token_id": -1, **fields}
    return library.GenerationConfig(**settings)


def small(library: Any = transformers) -> Any:
    """Memory of the reference; its own choice takes most of a minute to allocate."""
    return library.ContinuousBatchingConfig(num_blocks=64, max_batch_tokens=64, page_size=16)


def theirs_of(reference: Any, **kwargs: Any) -> dict[str, Any]:
    """Return the reference's output, in as little memory as possible."""
    return reference.generate_batch(
        PROMPTS,
        config_of(transformers, **kwargs),
        continuous_batching_config=small(),
        warmup=False,
        record_timestamps=True,
    )


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3"])
def test_the_same_tokens(model_type: str) -> None:
    reference, core = random_pair(model_type, seed=3)
    model = PreTrainedModel(core)
    theirs = theirs_of(reference)
    ours = model.generate_batch(PROMPTS, config_of(asyncgen), record_timestamps=True)
    assert ours.keys() == theirs.keys()
    for name, output in ours.items():
        assert output.generated_tokens == theirs[name].generated_tokens
        assert output.prompt_ids == theirs[name].prompt_ids
        assert output.status.name == theirs[name].status.name == "FINISHED"
        assert output.error is None and theirs[name].error is None
        assert len(output.timestamps or ()) == len(theirs[name].timestamps) == NEW
    for prompt, output in zip(PROMPTS, ours.values(), strict=True):
        alone = model.generate(
            torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, eos_token_id=-1
        )
        assert isinstance(alone, torch.Tensor)
        assert output.generated_tokens == alone[0, len(prompt) :].tolist()


@pytest.mark.parametrize("model_type", ["llama", "mistral", "qwen2", "qwen3", "gpt2"])
def test_the_same_tokens_as_generate_of_the_reference(model_type: str) -> None:
    reference, core = random_pair(model_type, seed=4)
    outputs = PreTrainedModel(core).generate_batch(
        PROMPTS, max_new_tokens=NEW, do_sample=False, page_size=4, max_running=3
    )
    for prompt, output in zip(PROMPTS, outputs.values(), strict=True):
        ids = reference.generate(
            torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, pad_token_id=0
        )
        assert output.generated_tokens == ids[0, len(prompt) :].tolist()


def test_an_end_of_sequence_token_is_the_last() -> None:
    reference, core = random_pair("llama", seed=5)
    model = PreTrainedModel(core)
    ends = model.generate_batch(PROMPTS, config_of(asyncgen))["req_3"].generated_tokens[4]
    theirs = theirs_of(reference, eos_token_id=ends)
    ours = model.generate_batch(PROMPTS, config_of(asyncgen, eos_token_id=ends))
    found = {name: output.generated_tokens for name, output in ours.items()}
    assert found == {name: output.generated_tokens for name, output in theirs.items()}
    assert found["req_3"][-1] == ends and len(found["req_3"]) <= 5


def managed(library: Any, model: Any, batching: Any) -> list[tuple[str, list[int], bool]]:
    """The reference's own way to use a manager, but for the import."""
    manager = model.init_continuous_batching(config_of(library), batching)
    manager.start()
    assert manager.is_running()
    for number, prompt in enumerate(PROMPTS):
        name = manager.add_request(
            input_ids=prompt, request_id=f"request_{number}", max_new_tokens=5 + number
        )
        assert name == f"request_{number}"
    finished: list[tuple[str, list[int], bool]] = []
    while len(finished) < len(PROMPTS):
        result = manager.get_result(timeout=60)
        assert result is not None
        if result.is_finished():
            finished.append((result.request_id, result.generated_tokens, False))
    with manager.pause():
        assert manager.get_result(timeout=0.01) is None
    streamed = manager.add_request(PROMPTS[0], streaming=True, record_timestamps=True)
    finished += [
        (result.request_id, list(result.generated_tokens), not result.is_finished())
        for result in manager.request_id_iter(streamed)
    ]
    ends = finished[-1][1][4]
    ended = manager.add_request(PROMPTS[0], "ended", 9, False, False, [ends])
    result = manager.get_result(ended, 60)
    finished.append((ended, result.generated_tokens, int(result.status) == 3))
    manager.cancel_request("unknown")
    manager.stop(True, 60, False)
    assert not manager.is_running()
    assert manager.get_result(timeout=0.01) is None
    manager.join(time.perf_counter(), 1.0)
    manager.destroy()
    return sorted(finished)


def test_code_for_the_manager_of_the_reference_runs() -> None:
    reference, core = random_pair("qwen3", seed=6)
    theirs = managed(transformers, reference, small())
    ours = managed(asyncgen, PreTrainedModel(core), small(asyncgen))
    assert ours == theirs
    assert [streaming for *_, streaming in ours].count(True) == NEW


BATCH = """
model = {library}.AutoModelForCausalLM.from_pretrained(folder)
config = {library}.GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=-1)
outputs = model.generate_batch(inputs, config, batching, True, False, True, False)
assert all(len(output.timestamps) == 6 for output in outputs.values())
again = model.generate_batch(inputs, config, batching, False, False, True, False)
assert hasattr(model, "_cached_continuous_batching_manager")
model.destroy_cached_continuous_batching_manager()
assert not hasattr(model, "_cached_continuous_batching_manager")
assert [one.generated_tokens for one in again.values()] == [
    one.generated_tokens for one in outputs.values()
]
found = {{name: output.generated_tokens for name, output in outputs.items()}}
"""


def test_code_for_batches_runs_with_the_import_line_changed(tmp_path: Any) -> None:
    reference, _ = random_pair("llama", seed=7)
    reference.save_pretrained(tmp_path)
    found: list[dict[str, list[int]]] = []
    for library in (asyncgen, transformers):
        names: dict[str, Any] = {
            library.__name__: library,
            "folder": str(tmp_path),
            "inputs": PROMPTS[:3],
            "batching": small(library),
        }
        exec(BATCH.format(library=library.__name__), names)
        found.append(names["found"])
    assert found[0] == found[1] and len(found[0]) == 3


EXTRA = {"logit_processor_kwargs"}
"""Among keyword parameters here."""


@pytest.mark.parametrize(
    "method",
    [
        "add_request",
        "add_requests",
        "cancel_request",
        "get_result",
        "request_id_iter",
        "is_running",
        "start",
        "stop",
    ],
)
def test_methods_take_what_those_of_the_reference_take(method: str) -> None:
    module = importlib.import_module("transformers.generation.continuous_batching")
    theirs = inspect.signature(getattr(module.ContinuousBatchingManager, method)).parameters
    ours = inspect.signature(getattr(asyncgen.ContinuousBatchingManager, method)).parameters
    wanted = [name for name in theirs if name not in EXTRA]
    assert [name for name in wanted if name not in ours] == []
    for name in wanted:
        assert ours[name].default == theirs[name].default


def test_results_have_the_fields_of_the_reference() -> None:
    module = importlib.import_module("transformers.generation.continuous_batching.requests")
    theirs = inspect.signature(module.GenerationOutput).parameters
    ours = inspect.signature(asyncgen.GenerationOutput).parameters
    assert list(ours) == list(theirs)


def test_the_mixin_is_joined() -> None:
    assert issubclass(PreTrainedModel, asyncgen.ContinuousMixin)


@pytest.mark.parametrize("name", ["Scheduler", "FIFOScheduler", "PrefillFirstScheduler"])
def test_schedulers_give_the_tokens_of_the_reference(name: str) -> None:
    if name == "Scheduler":

        class Backwards(asyncgen.Scheduler):
            """The last in rank first."""

            def schedule_batch(self, token_budget: int, cache_budget: int) -> list[Any]:
                candidates = [*self.running(), *self.waiting()][::-1]
                return self.schedule(candidates, token_budget, cache_budget)

        chosen: Any = Backwards
    else:
        chosen = getattr(asyncgen, name)
    reference, core = random_pair("mistral", seed=8, sliding_window=8)
    outputs = PreTrainedModel(core).generate_batch(
        PROMPTS[:4], config_of(asyncgen), scheduler=chosen, max_running=2, page_size=4
    )
    for prompt, output in zip(PROMPTS, outputs.values(), strict=False):
        ids = reference.generate(
            torch.tensor([prompt]), generation_config=config_of(transformers, pad_token_id=0)
        )
        assert output.generated_tokens == ids[0, len(prompt) :].tolist()
