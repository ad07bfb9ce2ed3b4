"""Exceptions name what was wrong."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import asyncgen
from asyncgen import errors
from asyncgen.errors import (
    AsyncgenError,
    ContextLengthError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    UnsupportedModelError,
    clip,
    shorten,
)
from asyncgen.types import counted


def test_every_error_is_ours() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), AsyncgenError)


def test_kinds() -> None:
    assert issubclass(InvalidRequestError, ValueError)
    assert issubclass(ContextLengthError, InvalidRequestError)
    assert issubclass(UnsupportedModelError, ModelLoadError)


def test_the_tree_in_the_docstring_is_complete() -> None:
    assert errors.__doc__ is not None
    assert all(name in errors.__doc__ for name in errors.__all__)


def test_an_invalid_request_names_its_parts() -> None:
    error = InvalidRequestError("top_p", 1.5, "from 0 to 1")
    assert (error.parameter, error.value, error.allowed) == ("top_p", 1.5, "from 0 to 1")
    assert str(error) == "`top_p` is 1.5: from 0 to 1"


def test_what_is_said_of_a_value_has_no_quotes() -> None:
    error = ContextLengthError("prompt", counted(30, "token"), "shorten it")
    assert str(error) == "`prompt` is 30 tokens: shorten it"
    assert error.value == "30 tokens"
    back = pickle.loads(pickle.dumps(error))
    assert (str(back), back.value) == (str(error), error.value)
    assert str(InvalidRequestError("prompt", "30 tokens", "no")) == "`prompt` is '30 tokens': no"


def test_no_error_shows_words_about_a_value_as_if_they_were_the_value() -> None:
    composed = re.compile(r'(?:InvalidRequest|ContextLength|CacheFull)Error\(\s*[^,()]+,\s*f"')
    folder = Path(asyncgen.__file__).parent
    sources = {path: path.read_text() for path in folder.rglob("*.py")}
    assert not [path for path, source in sources.items() if composed.search(source)]
    assert sum("InWords(" in source for source in sources.values()) > 20


def test_long_values_are_shortened() -> None:
    message = str(InvalidRequestError("prompt", "x" * 10_000, "shorter"))
    assert len(message) < 200
    assert message.endswith("…: shorter")


def test_overloaded_error_has_retry_after() -> None:
    assert OverloadedError("full", 2.5).retry_after == 2.5


def test_a_value_too_deep_to_be_shown() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    assert str(InvalidRequestError("stop", value, "texts")).startswith("`stop` is [[[[")


def test_errors_do_not_repeat_long_texts() -> None:
    long = "x" * 100_000
    config = {"greenlist_ratio": 0.5, long: 1, f"{long}2": 2}
    with asyncgen.LLM("demo") as llm:
        for prompt, params in (
            ("Hi", {"watermarking_config": config}),
            ("Hi", {long: 1}),
            ("Hi", {"stop": [[long]]}),
            ("Hi", {"chat_template_kwargs": {long: {1}}}),
            ([{"role": long, "content": "a"}], {}),
            ([{"role": "user", "content": [{"type": long}]}], {}),
        ):
            with pytest.raises(asyncgen.AsyncgenError) as refused:
                llm.generate(prompt, max_new_tokens=1, **params)
            assert len(str(refused.value)) < 2500
            assert len(getattr(refused.value, "parameter", "")) <= 120


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.binary(max_size=8)
    | st.text("ab'\"\\\n\x00é☃", max_size=60),
    lambda inner: (
        st.lists(inner, max_size=9)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=8), inner)
    ),
)


@settings(max_examples=50)
@given(value=VALUES, limit=st.integers(2, 60))
def test_a_shortened_value_is_the_beginning_of_what_python_writes(
    value: object, limit: int
) -> None:
    assert shorten(value, limit) == clip(repr(value), limit)


def test_no_more_of_a_value_is_rendered_than_is_shown() -> None:
    num_rendered = 0

    class Entry:
        def __repr__(self) -> str:
            nonlocal num_rendered
            num_rendered += 1
            return "x"

    many = [Entry() for _ in range(10_000)]
    for value in (many, tuple(many), dict.fromkeys(many), {"a": [many]}):
        num_rendered = 0
        assert len(shorten(value)) == 120
        assert num_rendered < 120
