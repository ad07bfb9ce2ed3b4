"""``generate_batch``: what it gives, what it refuses, and that it runs on the calling thread."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch

from asyncgen.engine.scheduling.state import RequestStatus
from asyncgen.errors import ContextLengthError, InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.reference.load_model import set_seed
from tests.cases import for_each
from tests.doubles.engine import greedy_ids, no_thread_left, sampled_ids
from tests.doubles.models import TableModel, byte_tokenizer
from tests.engine.sync_calls import PROMPTS, BatchModel, Breaks, Idle, finished, running

__all__ = ["no_thread_left"]


def test_a_batch_gives_the_tokens_of_each_prompt_alone() -> None:
    model = BatchModel()
    before = threading.active_count()
    outputs = model.generate_batch(PROMPTS, max_new_tokens=9, record_timestamps=True)
    assert threading.active_count() == before
    assert list(outputs) == ["req_0", "req_1", "req_2", "req_3"]
    for prompt, output in zip(PROMPTS, outputs.values(), strict=True):
        assert output.generated_tokens == greedy_ids(model, prompt, 9)
        assert (output.prompt_ids, output.error) == (prompt, None)
        assert output.status is RequestStatus.FINISHED and output.is_finished()
        assert output.timestamps is not None and len(output.timestamps) == 9
        begun, ended = output.lifespan
        times = [output.created_time, begun, *output.timestamps, ended]
        assert times == sorted(times)
    assert model.core.num_packed < 4 * 9


def test_a_batch_of_nothing() -> None:
    assert BatchModel().generate_batch([]) == {}


def test_the_configuration_is_the_base_and_keywords_win() -> None:
    model = BatchModel(max_new_tokens=7)
    assert len(model.generate_batch(PROMPTS[:1])["req_0"].generated_tokens) == 7
    config = GenerationConfig(max_new_tokens=5)
    assert len(model.generate_batch(PROMPTS[:1], config)["req_0"].generated_tokens) == 5
    output = model.generate_batch(PROMPTS[:1], config, max_new_tokens=2)["req_0"]
    assert output.generated_tokens == greedy_ids(model, PROMPTS[0], 2)
    assert output.timestamps is None and output.logprobs == []


def test_without_a_length_it_goes_to_the_end_of_the_context() -> None:
    output = BatchModel(context_length=30).generate_batch([[1, 2]])["req_0"]
    assert len(output.generated_tokens) == 28


@pytest.mark.parametrize("eos", [-1, [-1]])
def test_a_negative_id_ends_nothing(eos: Any) -> None:
    model = BatchModel(script="ab", prompt_length=2)
    assert len(model.generate_batch([[1, 2]], max_new_tokens=6)["req_0"].generated_tokens) == 3
    config = GenerationConfig(eos_token_id=eos, max_new_tokens=6)
    assert len(model.generate_batch([[1, 2]], config)["req_0"].generated_tokens) == 6
    output = model.generate_batch([[1, 2]], max_new_tokens=6, eos_token_id=eos)["req_0"]
    assert len(output.generated_tokens) == 6


def test_a_request_that_raises_fails_alone(caplog: pytest.LogCaptureFixture) -> None:
    model = BatchModel()
    outputs = model.generate_batch(PROMPTS, max_new_tokens=4, logits_processor=[Breaks(7)])
    assert outputs["req_1"].error == "ZeroDivisionError: by the processor"
    assert outputs["req_1"].status is RequestStatus.FAILED
    assert outputs["req_1"].generated_tokens == []
    for number in (0, 2, 3):
        expected = greedy_ids(model, PROMPTS[number], 4)
        assert outputs[f"req_{number}"].generated_tokens == expected
    assert "1 requests failed, req_1 first" in caplog.text


def test_samples_have_names_of_their_own() -> None:
    model = BatchModel()
    outputs = model.generate_batch([[1, 2], [3]], max_new_tokens=5, n=3, temperature=0.9, seed=4)
    assert list(outputs) == [
        f"req_{prompt}{sample}" for prompt in range(2) for sample in ("", "__child#0", "__child#1")
    ]
    for prompt, ids in enumerate(([1, 2], [3])):
        for row, sample in enumerate(("", "__child#0", "__child#1")):
            found = outputs[f"req_{prompt}{sample}"].generated_tokens
            assert len(found) == 5
            assert found == sampled_ids_at(model, ids, 4 + prompt, row, 0.9)


def sampled_ids_at(
    model: TableModel, prompt: list[int], seed: int, row: int, temperature: float
) -> list[int]:
    """Return the ids that a sample of a request draws when the request is alone."""
    manager = running(model)
    manager.add_request(prompt, "it", 5, temperature=temperature, n=row + 1, seed=seed)
    found = finished(manager, row + 1)
    manager.stop()
    return found[f"it__child#{row - 1}" if row else "it"].generated_tokens


def test_draws_follow_the_seed_of_the_program() -> None:
    model = BatchModel()
    drawn: list[list[list[int]]] = []
    ways: list[dict[str, Any]] = [{"do_sample": True}, {"dynatemp_range": 0.5}]
    for asks in ways:
        drawn.clear()
        for seed in (3, 3, 4):
            set_seed(seed)
            outputs = model.generate_batch([[1], [1]], max_new_tokens=8, **asks)
            drawn.append([output.generated_tokens for output in outputs.values()])
        assert drawn[0] == drawn[1] != drawn[2]
        assert drawn[0][0] != drawn[0][1]
    state = torch.get_rng_state()
    model.generate_batch([[1]], max_new_tokens=2)
    assert torch.equal(state, torch.get_rng_state())


def test_a_seed_is_that_of_the_request() -> None:
    model = BatchModel()
    outputs = model.generate_batch([[1], [1]], max_new_tokens=8, do_sample=True, top_k=0, seed=5)
    for number, output in enumerate(outputs.values()):
        assert output.generated_tokens == sampled_ids(model, [1], 8, seed=5 + number)


def test_logprobs_and_stop_strings() -> None:
    model, tokenizer = BatchModel(script="one two three"), byte_tokenizer()
    output = model.generate_batch([[1]], max_new_tokens=30, logprobs=True)["req_0"]
    assert len(output.logprobs) == len(output.generated_tokens) > 5
    assert all(value <= 0 for value in output.logprobs)
    model = BatchModel(script="one two three", prompt_length=1)
    for name, end in (("stop_strings", "one two"), ("stop", "one two")):
        given: dict[str, Any] = {name: ["two"]}
        output = model.generate_batch([[1]], tokenizer=tokenizer, **given)["req_0"]
        assert bytes(output.generated_tokens).decode() == end


@pytest.mark.parametrize(
    "given",
    [{"penalty_alpha": 0.6, "top_k": 3}, {"num_beams": 3}, {"prompt_lookup_num_tokens": 2}],
    ids=lambda given: next(iter(given)),
)
def test_strategies_outside_the_batch_are_served(given: dict[str, Any]) -> None:
    model = BatchModel()
    outputs = model.generate_batch(PROMPTS, max_new_tokens=6, **given)
    for prompt, output in zip(PROMPTS, outputs.values(), strict=True):
        ids = model.generate(torch.tensor([prompt]), max_new_tokens=6, **given)
        assert isinstance(ids, torch.Tensor)
        assert output.generated_tokens == ids[0, len(prompt) :].tolist()


@for_each(
    ("given", "name"),
    [
        ({"num_q_padding_intervals": -1}, "num_q_padding_intervals"),
        ({"num_kv_padding_intervals": "2"}, "num_kv_padding_intervals"),
        ({"allow_block_sharing": 1}, "allow_block_sharing"),
        ({"progress_bar": None}, "progress_bar"),
        ({"record_timestamps": "yes"}, "record_timestamps"),
        ({"scheduler": "lifo"}, "scheduler"),
        ({"scheduler": dict}, "scheduler"),
        ({"max_running": 0}, "max_running"),
        ({"page_size": 0}, "page_size"),
        ({"kv_cache_memory": 1}, "kv_cache_memory"),
        ({"inputs": [[1], []]}, "inputs[1]"),
        ({"inputs": ["text"]}, "inputs[0]"),
        ({"inputs": [1, 2]}, "inputs[0]"),
        ({"inputs": "text"}, "inputs"),
        ({"inputs": [[1, 999]]}, "prompt"),
        ({"generation_config": {"max_new_tokens": 3}}, "generation_config"),
        ({"generation_config": GenerationConfig(output_scores=True)}, "output_scores"),
        ({"generation_config": GenerationConfig(token_healing=True)}, "token_healing"),
        ({"output_logits": True}, "output_logits"),
        ({"streamer": object()}, "streamer"),
        ({"token_healing": True}, "token_healing"),
        ({"stop": ["a"]}, "stop"),
        ({"stop_strings": ["a"]}, "stop_strings"),
        ({"assistant_model": "demo"}, "assistant_model"),
        ({"nonsense": 3}, "nonsense"),
        ({"temperature": -1.0}, "temperature"),
        ({"top_p": 3.0}, "top_p"),
        ({"temperature": 0.5, "do_sample": False}, "temperature"),
        ({"max_new_tokens": 0}, "max_new_tokens"),
    ],
)
def test_generate_batch_refuses_unsupported_options_by_name(
    given: dict[str, Any], name: str
) -> None:
    model = BatchModel()
    with pytest.raises(InvalidRequestError) as caught:
        model.generate_batch(**{"inputs": [[1]], **given})
    assert caught.value.parameter == name
    assert model.num_forwards == 0


def test_more_than_the_context() -> None:
    with pytest.raises(ContextLengthError):
        BatchModel(context_length=20).generate_batch([[1] * 10], max_new_tokens=11)


@pytest.mark.parametrize("sharing", [True, False])
def test_block_sharing(sharing: bool) -> None:
    model = BatchModel()
    prompts = [list(range(64)) + [last] for last in (70, 71, 72)]
    outputs = model.generate_batch(
        prompts, max_new_tokens=3, allow_block_sharing=sharing, num_return_sequences=1
    )
    for prompt, output in zip(prompts, outputs.values(), strict=True):
        assert output.generated_tokens == greedy_ids(model, prompt, 3)
    computed = sum(length for _, length in model.core.forwards)
    assert (computed > 3 * 64) is not sharing


def test_idle_scheduler_raises_runtime_error() -> None:
    with pytest.raises(RuntimeError, match="schedule_batch"):
        BatchModel().generate_batch(PROMPTS, scheduler=Idle)
