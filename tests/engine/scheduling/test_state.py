"""A row's record keeps what it is told, and says it in the documented form."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest

from asyncgen.engine.scheduling.state import GenerationOutput, RequestState, RequestStatus
from tests.cases import for_each


def decoding(**parameters: object) -> RequestState:
    """A request that takes tokens."""
    state = RequestState("a", [1, 2, 3], **parameters)  # type: ignore[arg-type]
    state.status = RequestStatus.DECODING
    return state


def test_tokens_are_prompt_and_generated() -> None:
    prompt = [1, 2, 3]
    state = RequestState("a", prompt)
    assert state.tokens == prompt
    state.status = RequestStatus.DECODING
    assert not state.update_and_check_completion(9)
    assert (state.tokens, state.generated_tokens, state.generated_len()) == ([1, 2, 3, 9], [9], 1)
    assert prompt == state.initial_tokens == [1, 2, 3]


def test_the_number_of_tokens_ends_it() -> None:
    state = decoding(max_new_tokens=2)
    assert [state.update_and_check_completion(5) for _ in range(4)] == [False, True, False, False]
    assert state.generated_tokens == [5, 5]
    assert state.status is RequestStatus.FINISHED


@pytest.mark.parametrize("eos", [7, [7], [6, 7]])
def test_an_end_token_ends_it_and_is_kept(eos: int | list[int]) -> None:
    state = decoding(eos_token_id=eos, max_new_tokens=None)
    assert [state.update_and_check_completion(token) for token in (5, 7)] == [False, True]
    assert state.generated_tokens == [5, 7]


@pytest.mark.parametrize("eos", [None, -1, []])
def test_request_without_limits_never_completes(eos: int | list[int] | None) -> None:
    state = decoding(eos_token_id=eos, max_new_tokens=None)
    assert not any(state.update_and_check_completion(token) for token in range(100))


@for_each("status", [status for status in RequestStatus if status is not RequestStatus.DECODING])
def test_only_decoding_requests_take_tokens(status: RequestStatus) -> None:
    state = RequestState("a", [1])
    state.status = status
    assert not state.update_and_check_completion(5)
    assert state.tokens == [1]


def test_times_run_forward() -> None:
    state = decoding(record_timestamps=True, max_new_tokens=3)
    state.begin()
    for _ in range(3):
        state.update_and_check_completion(5, -0.25)
    output = state.to_generation_output()
    assert output.timestamps is not None
    times = [output.created_time, output.lifespan[0], *output.timestamps, output.lifespan[1]]
    assert all(before <= after for before, after in pairwise(times))
    assert output.logprobs == [-0.25] * 3
    state.begin()
    state.end("too late")
    assert state.to_generation_output() == output
    assert decoding().timestamps is None


def test_an_output_is_a_copy() -> None:
    state = decoding(record_timestamps=True)
    state.update_and_check_completion(5, -1.0)
    output = state.to_generation_output()
    assert not output.is_finished()
    state.update_and_check_completion(6, -2.0)
    assert (output.generated_tokens, output.logprobs) == ([5], [-1.0])
    assert output.timestamps is not None
    assert len(output.timestamps) == 1


def test_a_failure_is_kept() -> None:
    state = decoding()
    state.end("no more pages")
    output = state.to_generation_output()
    assert output.is_finished()
    assert (output.status, output.error) == (RequestStatus.FAILED, "no more pages")
    assert GenerationOutput("b").is_finished() is False


def test_fork_continues_from_the_same_tokens() -> None:
    state = decoding(max_new_tokens=5, eos_token_id=[9], priority=2, record_timestamps=True)
    state.update_and_check_completion(5, -1.0)
    state.block_tables, state.num_computed = [[4]], 3
    twin = state.fork("b")
    assert (twin.request_id, twin.tokens, twin.generated_tokens) == ("b", [1, 2, 3, 5], [5])
    assert (twin.block_tables, twin.num_computed, twin.status) == ([], 0, RequestStatus.PENDING)
    twin.status = RequestStatus.DECODING
    assert twin.update_and_check_completion(9)
    assert state.generated_tokens == [5]
    assert (twin.priority, len(twin.timestamps or ())) == (2, 2)
    assert (state.allocated_blocks, state.position_offset, state.current_len()) == (1, 3, 3)


def test_the_log_has_one_line(caplog: pytest.LogCaptureFixture) -> None:
    state = decoding(max_new_tokens=1)
    state.begin()
    state.update_and_check_completion(5)
    with caplog.at_level(logging.INFO, "asyncgen.engine"):
        state.log_end_of_request()
    (line,) = caplog.messages
    assert line.startswith("request a: 3 prompt tokens, 1 generated")


def test_statuses_have_the_numbers_of_the_reference() -> None:
    requests = pytest.importorskip("transformers.generation.continuous_batching.requests")
    ours = {status.name: status.value for status in RequestStatus}
    assert ours == {status.name: status.value for status in requests.RequestStatus}
    assert (ours["DECODING"], ours["FINISHED"], ours["FAILED"]) == (2, 3, 4)
    for older in (RequestStatus.PREFILLING_SPLIT, RequestStatus.SPLIT_PENDING_REMAINDER):
        assert older is RequestStatus.PREFILLING
    for status in RequestStatus:
        output = GenerationOutput("a", status=status)
        theirs = requests.GenerationOutput("a", status=requests.RequestStatus(status))
        assert output.is_finished() is theirs.is_finished()


@for_each("limit", [1, 3, None])
@for_each("eos", [None, 4, [4, 5]])
def test_it_answers_as_the_reference_does(limit: int | None, eos: int | list[int] | None) -> None:
    requests = pytest.importorskip("transformers.generation.continuous_batching.requests")
    ours = RequestState("a", [1, 2], max_new_tokens=limit, eos_token_id=eos)
    theirs = requests.RequestState("a", [1, 2], max_new_tokens=limit, eos_token_id=eos)
    for state, status in ((ours, RequestStatus), (theirs, requests.RequestStatus)):
        state.status = status.DECODING
    for token in (3, 5, 4, 3, 3):
        answers = [state.update_and_check_completion(token, -0.5) for state in (ours, theirs)]
        assert answers[0] == answers[1]
        assert ours.generated_len() == theirs.generated_len()
    mine, reference = ours.to_generation_output(), theirs.to_generation_output()
    for name in ("request_id", "prompt_ids", "generated_tokens", "logprobs", "error"):
        assert getattr(mine, name) == getattr(reference, name)
    assert mine.status.name == reference.status.name
    assert mine.is_finished() == reference.is_finished()


def test_positions_of_the_documented_parameters_stay() -> None:
    state = RequestState("a", [1, 2], False, False, 20, None, 0, b"tenant")
    assert (state.salt, state.prefill_chunk_size) == (b"tenant", None)
