"""Numbers, texts and tensors of a user's classes run code: it reaches no neighbour either."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.generation.stopping.criteria import (
    EosTokenCriteria,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteriaList,
)
from asyncgen.generation.stopping.stop_checks import StopChecks
from tests.cases import for_each
from tests.left_behind import LEFT, Negating, enter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PROMPT = "Once upon a time"
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 6}

left: dict[str, Callable[[], object]] = {}
"""What code behind a value leaves, as ``leave``."""
threads: set[str] = set()
"""Names of the threads on which code behind a value ran."""


def ran(*_: Any) -> Any:
    threads.add(threading.current_thread().name)
    if threading.current_thread() is not threading.main_thread():
        left["leave"]()
    return NotImplemented


class Number(float):
    """A float whose every use runs code; it is worth what it says."""

    __add__ = __radd__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = ran
    __lt__ = __gt__ = __le__ = __ge__ = __pow__ = __rpow__ = __neg__ = __abs__ = ran

    def __float__(self) -> float:
        ran()
        return float.__float__(self)

    __hash__ = float.__hash__

    def __eq__(self, other: object) -> bool:
        ran()
        return float.__eq__(self, other)


class Whole(int):
    """The same of whole numbers."""

    __lt__ = __gt__ = __le__ = __ge__ = __add__ = __radd__ = __sub__ = __rsub__ = ran

    def __index__(self) -> int:
        ran()
        return int.__int__(self)

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        ran()
        return int.__eq__(self, other)


class Watched(torch.Tensor):
    """A tensor whose every operation runs code."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        ran()
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))


def watched(value: Any) -> Any:
    return torch.tensor(value).as_subclass(Watched)


def holding(make: Callable[[], Any], name: str, value: Any) -> Callable[[], dict[str, Any]]:
    """Return how to make parameters with an object whose attribute is this value."""

    def given() -> dict[str, Any]:
        own = make()
        setattr(own, name, value)
        is_criterion = isinstance(own, asyncgen.StoppingCriteria)
        return {"stopping_criteria" if is_criterion else "logits_processor": [own]}

    return given


OBJECTS = {
    "time": holding(lambda: MaxTimeCriteria(60.0), "max_time", Number(1e9)),
    "temperature": holding(
        lambda: asyncgen.TemperatureLogitsWarper(1.5), "temperature", watched(1.5)
    ),
    "penalty": holding(
        lambda: asyncgen.RepetitionPenaltyLogitsProcessor(1.5), "penalty", watched(1.5)
    ),
    "top_k": holding(lambda: asyncgen.TopKLogitsWarper(5), "top_k", Whole(5)),
}


class Text(str):
    """A text whose every use runs code."""

    __slots__ = ()

    def __str__(self) -> str:
        ran()
        return str.__str__(self)

    def encode(self, *given: Any) -> bytes:
        ran()
        return str.encode(self, *given)

    __hash__ = str.__hash__


VALUES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    name: ({**rest, name: odd}, {**rest, name: plain})
    for name, odd, plain, rest in (
        ("temperature", Number(0.7), 0.7, {"seed": 3}),
        ("top_k", Whole(5), 5, {"seed": 3}),
        ("repetition_penalty", Number(1.5), 1.5, GREEDY),
        ("suppress_tokens", [Whole(18)], [18], GREEDY),
        ("sequence_bias", [[[Whole(5)], Number(9.0)]], [[[5], 9.0]], GREEDY),
        ("seed", Whole(5), 5, {"do_sample": True}),
        ("prompt_lookup_num_tokens", Whole(3), 3, GREEDY),
        ("stop", [Text("girl")], ["girl"], GREEDY),
    )
}
"""Parameters of odd classes, and the same in plain ones."""

LEAVINGS: dict[str, Callable[[], object]] = {
    "function mode": lambda: enter(Negating),
    "default dtype": LEFT["default dtype"],
    "gradients": LEFT["gradients"],
    "dispatch mode": LEFT["dispatch mode"],
}


@pytest.fixture(scope="module")
def llm() -> Iterator[asyncgen.LLM]:
    with asyncgen.LLM("demo", num_threads=1) as llm:
        yield llm


def tokens(llm: asyncgen.LLM, **given: Any) -> Any:
    return llm.generate(PROMPT, **{"max_new_tokens": 6, **given}).token_ids


def beside(llm: asyncgen.LLM, given: dict[str, Any], expected: Any) -> Any:
    """Serve a request and a neighbour, and another one behind it; return its tokens."""
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(lambda: tokens(llm, **given))
        assert tokens(llm, **GREEDY, repetition_penalty=1.1) == expected
        found = asked.result()
    assert tokens(llm, **GREEDY, repetition_penalty=1.1) == expected
    return found


@for_each("name", OBJECTS)
def test_code_behind_an_attribute_reaches_no_neighbour(llm: asyncgen.LLM, name: str) -> None:
    make = OBJECTS[name]
    left["leave"] = lambda: None
    expected = tokens(llm, **GREEDY, repetition_penalty=1.1)
    own = tokens(llm, **GREEDY, **make())
    for leave in LEAVINGS.values():
        left["leave"] = leave
        threads.clear()
        assert beside(llm, {**GREEDY, **make()}, expected) == own
        assert "asyncgen-decode" in threads, "the attribute runs no code"


def test_plain_criteria_become_plain_values() -> None:
    left["leave"] = lambda: None
    time, length, end = MaxTimeCriteria(60.0), MaxLengthCriteria(99), EosTokenCriteria(1)
    time.max_time, length.max_length, end.eos_token_id = Number(1e9), Whole(7), watched([1, 5])
    checks = StopChecks(StoppingCriteriaList(), passed=[time, length, end])
    assert checks.eos_token_ids == {1, 5}
    assert {type(each) for each in checks.eos_token_ids} == {int}
    assert (checks.max_length, type(checks.max_length)) == (7, int)
    assert checks.reason(0, 5, 3) == "stop"
    assert checks.reason(0, 6, 7) == "length"
    length.max_length = "8"  # type: ignore[assignment]
    with pytest.raises(asyncgen.InvalidRequestError, match="MaxLengthCriteria"):
        checks.interrupted()


@for_each("name", VALUES)
def test_a_number_of_another_class_is_its_value(llm: asyncgen.LLM, name: str) -> None:
    """Nothing of its class runs where others are served."""
    odd, plain = VALUES[name]
    expected = tokens(llm, **GREEDY, repetition_penalty=1.1)
    for leave in LEAVINGS.values():
        left["leave"] = leave
        threads.clear()
        assert beside(llm, odd, expected) == tokens(llm, **plain)
        assert "asyncgen-decode" not in threads


def test_ids_of_another_class_are_their_values(llm: asyncgen.LLM) -> None:
    expected = tokens(llm, **GREEDY, repetition_penalty=1.1)
    left["leave"] = LEAVINGS["function mode"]
    threads.clear()
    odd = llm.generate([Whole(each) for each in (5, 9, 300)], **GREEDY)
    assert odd.token_ids == llm.generate([5, 9, 300], **GREEDY).token_ids
    assert "asyncgen-decode" not in threads
    assert tokens(llm, **GREEDY, repetition_penalty=1.1) == expected


def test_a_deleted_attribute_counts_as_in_a_call(llm: asyncgen.LLM) -> None:
    own = asyncgen.RepetitionPenaltyLogitsProcessor(1.5)

    def delete(input_ids: Any, scores: Any, **_: Any) -> Any:
        if hasattr(own, "penalty"):
            del own.penalty
        return torch.zeros(len(input_ids), dtype=torch.bool)

    with pytest.raises(AttributeError, match="penalty"):
        tokens(llm, **GREEDY, logits_processor=[own], stopping_criteria=[delete])
    assert len(tokens(llm, **GREEDY)) == 6
