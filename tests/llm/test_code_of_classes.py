"""Classes of a user behind configurations, names, errors and attributes reach no neighbour.

Their code leaves something behind on the thread of all requests: it runs there guarded, or never.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch

import asyncgen
from tests.cases import for_each
from tests.left_behind import LEFT
from tests.llm.test_code_in_values import (
    GREEDY,
    LEAVINGS,
    PROMPT,
    Whole,
    beside,
    left,
    ran,
    threads,
    tokens,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

DECODE = "asyncgen-decode"


class Config(asyncgen.GenerationConfig):
    """A configuration of which every reading runs code."""

    def __getattribute__(self, name: str) -> Any:
        ran()
        return super().__getattribute__(name)


class Name(str):
    """A text that computes its hash."""

    __slots__ = ()
    __eq__ = str.__eq__

    def __hash__(self) -> int:
        ran()
        return str.__hash__(self)


class Several(list[Any]):
    """A list that computes whether it is one."""

    def __bool__(self) -> bool:
        ran()
        return True

    def __iter__(self) -> Iterator[Any]:
        ran()
        return super().__iter__()

    def __len__(self) -> int:
        ran()
        return super().__len__()


class Truth:
    """A truth value that is computed."""

    def __bool__(self) -> bool:
        ran()
        return True


class Unprintable(BaseException):
    """An error whose message is computed."""

    def __str__(self) -> str:
        ran()
        return "mine"


class Meta(type):
    """A class that computes what tells it from others."""

    def __hash__(cls) -> int:
        ran()
        return 5

    @property
    def __module__(cls) -> str:  # type: ignore[override]
        ran()
        return "asyncgen.mine"


class Strange(metaclass=Meta):
    """Its class runs code."""


class Nameless:
    """A processor that computes what it does not have; its scores are wrong, so it is named."""

    def __getattr__(self, name: str) -> Any:
        ran()
        raise AttributeError(name)

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
        return scores * torch.nan


class Speaking:
    """A method of decoding whose repr is in an error."""

    def __repr__(self) -> str:
        ran()
        return "mine"

    def __call__(self, model: Any, input_ids: Any, **_: Any) -> int:
        return 5


def later(change: Callable[[], object]) -> Callable[..., Any]:
    """A processor that changes something at its second token."""
    calls: list[Any] = []

    def process(input_ids: Any, scores: Any) -> Any:
        calls.append(None)
        if len(calls) == 2:
            change()
        return scores

    return process


def raised(llm: asyncgen.LLM) -> dict[str, Any]:
    def process(input_ids: Any, scores: Any) -> Any:
        raise Unprintable

    return {"logits_processor": [process]}


def raised_by_an_attribute(llm: asyncgen.LLM) -> dict[str, Any]:
    class SaidError(Exception):
        def __str__(self) -> str:
            ran()
            return "mine"

    class Wrong(float):
        def __radd__(self, other: object) -> Any:
            raise SaidError

        __add__ = __radd__
        __float__: Any = functools.partialmethod(__radd__, None)

    criterion = asyncgen.MaxTimeCriteria(60.0)
    change = later(lambda: setattr(criterion, "max_time", Wrong(1e9)))
    return {"stopping_criteria": [criterion], "logits_processor": [change]}


def wrapped(llm: asyncgen.LLM) -> dict[str, Any]:
    own: Any = asyncgen.SuppressTokensLogitsProcessor([18])

    @functools.wraps(type(own).due)
    def due(length: int) -> Any:
        ran()
        return own.suppress_tokens

    own.due = due
    return {"logits_processor": [own]}


def inner_method(llm: asyncgen.LLM) -> dict[str, Any]:
    own: Any = asyncgen.SequenceBiasLogitsProcessor({(18, 20): 1.0})

    def completions(ids: Any) -> dict[int, float]:
        ran()
        return {}

    change = later(lambda: setattr(own.biases, "completions", completions))
    return {"logits_processor": [change, own]}


def strange_attribute(llm: asyncgen.LLM) -> dict[str, Any]:
    own: Any = asyncgen.TemperatureLogitsWarper(1.5)
    own.extra = Strange()
    return {"logits_processor": [own]}


def streamer(llm: asyncgen.LLM, **attributes: Any) -> Any:
    made = asyncgen.TextIteratorStreamer(llm.tokenizer)
    vars(made).update(attributes)
    return made


def streamer_changed(llm: asyncgen.LLM) -> dict[str, Any]:
    made = streamer(llm)
    change = later(lambda: setattr(made, "on_finalized_text", lambda *_, **__: ran()))
    return {"streamer": made, "logits_processor": [change]}


def strange_streamer(llm: asyncgen.LLM) -> dict[str, Any]:
    return {"streamer": streamer(llm, extra=Strange())}


def draft(llm: asyncgen.LLM) -> dict[str, Any]:
    model = asyncgen.load_model("demo")
    model.generation_config = Config()
    return {"assistant_model": model}


Given = dict[str, Any]
RUN: dict[str, Callable[[asyncgen.LLM], Given]] = {
    "message of an error": raised,
    "message of an error behind an attribute": raised_by_an_attribute,
    "repr of a method": lambda _: {"custom_generate": Speaking()},
    "truth of an attribute of a streamer": lambda llm: {
        "streamer": streamer(llm, skip_prompt=Truth())
    },
    "arguments of decode of a streamer": lambda llm: {
        "streamer": streamer(llm, decode_kwargs={"clean_up_tokenization_spaces": Truth()})
    },
    "method of a streamer that is set later": streamer_changed,
    "configuration of a draft model": draft,
    "function that looks like another": wrapped,
    "method of an inner object that is set later": inner_method,
}
"""What runs on the thread of all requests, guarded."""

NEVER: dict[str, Callable[[asyncgen.LLM], Given]] = {
    "configuration": lambda _: {"generation_config": Config(max_new_tokens=6, do_sample=False)},
    "configuration with beams": lambda _: {"generation_config": Config(num_beams=2)},
    "client": lambda _: {"client": Name("me")},
    "name of a processor": lambda _: {"logits_processor": [Nameless()]},
    "banned words": lambda _: {"bad_words_ids": Several([Several([18])])},
    "forced words": lambda _: {"num_beams": 2, "force_words_ids": Several([Several([18])])},
    "layers": lambda _: {"dola_layers": Several([0])},
    "class of an attribute": strange_attribute,
    "class of an attribute of a streamer": strange_streamer,
}
"""What never runs there."""


@pytest.fixture(scope="module")
def llm() -> Iterator[asyncgen.LLM]:
    with asyncgen.LLM("demo", num_threads=1) as llm:
        yield llm


class Mine:
    """A tokenizer of the application's own, with ids and texts of classes of its own."""

    def __init__(self) -> None:
        self.inner = asyncgen.load_tokenizer("demo")

    def encode_ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return Several(map(Whole, self.inner.encode_ids(text, add_special_tokens)))

    def decode(self, ids: list[int], **given: Any) -> str:
        assert {*map(type, ids)} <= {int}
        return Said(self.inner.decode(ids, **given))


class Said(str):
    """A text that computes its parts."""

    __slots__ = ()

    def __getitem__(self, place: Any) -> str:
        ran()
        return str.__getitem__(self, place)

    def rstrip(self, *given: Any) -> str:
        ran()
        return str.rstrip(self, *given)

    def __len__(self) -> int:
        ran()
        return str.__len__(self)


def test_ids_and_texts_of_a_tokenizer_are_plain(llm: asyncgen.LLM) -> None:
    expected = llm.generate(PROMPT, **GREEDY, stop=["girl"])
    with asyncgen.LLM("demo", num_threads=1, tokenizer=Mine()) as other:
        threads.clear()
        left["leave"] = LEAVINGS["function mode"]
        for _ in range(2):
            found = other.generate(PROMPT, **GREEDY, stop=["girl"])
            assert (found.text, found.token_ids) == (expected.text, expected.token_ids)
            assert type(found.text) is str
    assert not [name for name in threads if name.startswith("asyncgen")]


def test_what_is_written_to_the_ids_of_beams_changes_no_beams(llm: asyncgen.LLM) -> None:
    def process(input_ids: Any, scores: Any) -> Any:
        input_ids.fill_(10**9)
        return scores

    def ends(input_ids: Any, scores: Any, **_: Any) -> Any:
        input_ids.fill_(-1)
        return torch.zeros(len(input_ids), dtype=torch.bool)

    def allowed(index: int, ids: Any) -> list[int]:
        ids.fill_(-1)
        return [*range(2048)]

    writing: tuple[dict[str, Any], ...] = (
        {"logits_processor": [process]},
        {"stopping_criteria": [ends]},
        {"prefix_allowed_tokens_fn": allowed},
    )
    for beams in (
        {"num_beams": 3},
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5},
        {"num_beams": 3, "force_words_ids": [[77]]},
    ):
        expected = tokens(llm, **GREEDY, **beams)
        for each in writing:
            assert tokens(llm, **GREEDY, **beams, **each) == expected, (beams, each)


@for_each("name", [*RUN, *NEVER])
def test_code_of_a_class_reaches_no_neighbour(llm: asyncgen.LLM, name: str) -> None:
    make = (RUN | NEVER)[name]
    expected = tokens(llm, **GREEDY, repetition_penalty=1.1)
    for leave in (LEAVINGS["function mode"], LEFT["default dtype"]):
        left["leave"] = lambda: None
        given = {**GREEDY, **make(llm)}
        given = given if "generation_config" not in given else make(llm)
        threads.clear()
        left["leave"] = leave
        try:
            beside(llm, given, expected)
        except (asyncgen.AsyncgenError, RuntimeError) as error:
            assert not isinstance(error, asyncgen.EngineDiedError)
        try:
            assert torch.get_default_dtype() == torch.float32
        finally:
            torch.set_default_dtype(torch.float32)
        assert (DECODE in threads) is (name in RUN)
        assert tokens(llm, **GREEDY, repetition_penalty=1.1) == expected
