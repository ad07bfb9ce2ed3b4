"""Objects of a user whose code runs behind the call that returned them: it leaves nothing behind.

A streamer of this library may hold a tokenizer of the user; a tensor, a class of theirs; what a
method yields may be computed when it is read.
"""

from __future__ import annotations

import ctypes
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from asyncgen.generation.strategies.step import Step
from asyncgen.runtime.transfer import plain_tensor
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

calls: list[str] = []
"""Names of the threads that `leave` ran on."""


def leave(*_: Any, **__: Any) -> None:
    """Leave settings of the process and a direction of rounding, on the decode thread only."""
    name = threading.current_thread().name
    calls.append(name)
    if name.startswith("asyncgen"):
        torch.set_default_dtype(torch.float64)
        torch.set_float32_matmul_precision("medium")
        ctypes.CDLL(None).fesetround(0x800)


class Leaving(torch.Tensor):
    """Runs code at each operation."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leave()
        return super().__torch_function__(func, types, args, kwargs or {})  # type: ignore[no-untyped-call]


class Tokens:
    """A tokenizer of the application's own."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def decode(self, *args: Any, **given: Any) -> Any:
        leave()
        return self.inner.decode(*args, **given)


class Streamer:
    def put(self, value: Any) -> None:
        """Take nothing."""

    def end(self) -> None:
        """Take nothing."""


def streamer_with_tokenizer(tokenizer: Any) -> dict[str, Any]:
    return {"streamer": asyncgen.TextIteratorStreamer(Tokens(tokenizer))}


def patched_streamer(tokenizer: Any) -> dict[str, Any]:
    streamer: Any = asyncgen.TextIteratorStreamer(tokenizer)
    streamer.on_finalized_text = leave
    return {"streamer": streamer}


def printing_streamer(tokenizer: Any) -> dict[str, Any]:
    streamer: Any = asyncgen.TextStreamer(tokenizer)
    streamer.on_finalized_text = leave
    return {"streamer": streamer}


def property_of_a_streamer(tokenizer: Any) -> dict[str, Any]:
    class Mine(Streamer):
        @property
        def put(self) -> Any:
            leave()
            return super().put

    return {"streamer": Mine()}


def flag_of_a_streamer(tokenizer: Any) -> dict[str, Any]:
    class Mine(Streamer):
        class cancelled:
            is_set = staticmethod(leave)

    return {"streamer": Mine()}


def scores_of_a_class(tokenizer: Any) -> dict[str, Any]:
    return {"logits_processor": [lambda ids, scores: scores.as_subclass(Leaving)]}


def scores_of_a_class_for_beams(tokenizer: Any) -> dict[str, Any]:
    return scores_of_a_class(tokenizer) | {"num_beams": 2}


def verdict_of_a_class(tokenizer: Any) -> dict[str, Any]:
    def ends(ids: Any, scores: Any, **_: Any) -> Any:
        return torch.zeros(len(ids), dtype=torch.bool).as_subclass(Leaving)

    return {"stopping_criteria": [ends]}


def lazy_ids(tokenizer: Any) -> dict[str, Any]:
    class Lazy:
        def __len__(self) -> int:
            leave()
            return 1

        def __getitem__(self, place: int) -> int:
            if place:
                raise IndexError
            return 5

    def method(model: Any, input_ids: Any, **_: Any) -> Iterator[Any]:
        for _number in range(3):
            yield Lazy()

    return {"custom_generate": method}


def ids_of_a_class(tokenizer: Any) -> dict[str, Any]:
    def method(model: Any, input_ids: Any, **_: Any) -> Any:
        return torch.cat((input_ids, input_ids.new_full((1, 3), 5)), dim=1).as_subclass(Leaving)

    return {"custom_generate": method}


@pytest.fixture(scope="module")
def llm() -> Iterator[asyncgen.LLM]:
    with asyncgen.LLM("demo", num_threads=1) as llm:
        yield llm


@for_each(
    "kind",
    (
        streamer_with_tokenizer,
        patched_streamer,
        printing_streamer,
        property_of_a_streamer,
        flag_of_a_streamer,
        scores_of_a_class,
        scores_of_a_class_for_beams,
        verdict_of_a_class,
        lazy_ids,
        ids_of_a_class,
    ),
    ids=lambda kind: kind.__name__,
)
def test_what_an_object_leaves_behind_reaches_nobody(
    llm: asyncgen.LLM, kind: Callable[[Any], dict[str, Any]]
) -> None:
    def tokens() -> list[Any]:
        found = llm.generate("Once", max_new_tokens=6, temperature=1.2, seed=9, logprobs=True)
        return [found.token_ids, found.logprobs]

    right = tokens()
    plain = llm.generate("Once", max_new_tokens=5, do_sample=False).token_ids
    try:
        given = kind(llm.tokenizer)
        calls.clear()
        found = llm.generate("Once", max_new_tokens=5, do_sample=False, **given)
        assert torch.get_default_dtype() == torch.float32
        assert torch.get_float32_matmul_precision() == "highest"
    finally:
        torch.set_default_dtype(torch.float32)
        torch.set_float32_matmul_precision("highest")
    assert tokens() == right
    if "streamer" in given:
        assert found.token_ids == plain
    if "custom_generate" in given:
        assert found.token_ids == (5, 5, 5)
    assert calls or "of_a_class" in kind.__name__


class Endless:
    """A sequence without an end, which says how long it is."""

    def __init__(self, length: int, entry: Any = 5) -> None:
        self.length, self.entry = length, entry

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, place: int) -> Any:
        return self.entry


ENDLESS: Any = [Endless(10**12)], [[Endless(1)]]


@for_each(
    "given",
    (
        *(Endless(10**12), Endless(1), [Endless(10**12)], range(10**12)),
        *(Step(rows, [None]) for rows in ENDLESS),
    ),
)
def test_what_is_longer_than_a_step_is_refused_at_once(llm: asyncgen.LLM, given: Any) -> None:
    def method(model: Any, input_ids: Any, **_: Any) -> Iterator[Any]:
        yield given

    began = time.monotonic()
    with pytest.raises(asyncgen.InvalidRequestError, match="custom_generate"):
        llm.generate("Once", custom_generate=method, max_new_tokens=3)
    assert time.monotonic() - began < 5


def test_a_tensor_of_a_class_becomes_a_plain_one_bit_for_bit() -> None:
    from torch.testing._internal.two_tensor import TwoTensor

    values = torch.tensor([[0.1, -0.0, torch.nan, torch.inf]])
    assert plain_tensor(values) is values
    for given in (
        values.as_subclass(Leaving),
        torch.nn.Parameter(values),
        TwoTensor(values, values.clone()),  # type: ignore[no-untyped-call]
    ):
        calls.clear()
        found = plain_tensor(given)
        assert type(found) is torch.Tensor
        assert not calls
        assert found.detach().view(torch.int32).tolist() == values.view(torch.int32).tolist()
