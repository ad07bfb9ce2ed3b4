"""Exceptions name what was wrong."""

from __future__ import annotations

import pytest

import asyncgen
from asyncgen import errors
from asyncgen.errors import (
    AsyncgenError,
    ContextLengthError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    UnsupportedModelError,
)


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
    assert "list" in str(InvalidRequestError("stop", value, "texts"))


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
