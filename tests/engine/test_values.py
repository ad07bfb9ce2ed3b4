"""Values that nobody else checks are checked here, by name."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from asyncgen.engine.values import RULES, check_callables, check_text, check_values
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.fields import DEFAULTS


def test_defaults_pass() -> None:
    check_values(GenerationConfig())
    check_values(SimpleNamespace(**DEFAULTS))


@pytest.mark.parametrize("name", [name for names, _, _ in RULES for name in names])
@pytest.mark.parametrize("value", [True, "x", -1, float("nan"), float("inf"), [1.5], {}])
def test_nonsense_is_refused_everywhere(name: str, value: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_values(SimpleNamespace(**{name: value}))
    assert caught.value.parameter == name
    assert caught.value.value is value


@pytest.mark.parametrize(
    ("name", "value", "passes"),
    [
        ("top_p", 0, True),
        ("top_p", 1.0, True),
        ("top_p", 1.01, False),
        ("epsilon_cutoff", 0.0, True),
        ("epsilon_cutoff", 1.0, False),
        ("repetition_penalty", 0, False),
        ("max_time", 1e-9, True),
        ("no_repeat_ngram_size", 0, True),
        ("no_repeat_ngram_size", 2.0, False),
        ("num_return_sequences", 0, False),
        ("eos_token_id", [], True),
        ("eos_token_id", (1, 2), True),
        ("eos_token_id", [1, "2"], False),
    ],
)
def test_bounds(name: str, value: Any, passes: bool) -> None:
    config = SimpleNamespace(**{name: value})
    if passes:
        check_values(config)
    else:
        with pytest.raises(InvalidRequestError):
            check_values(config)


def test_text() -> None:
    check_text("stop", ["a", "😀", 5])
    with pytest.raises(InvalidRequestError, match="`stop` is .*position 1"):
        check_text("stop", ["a", "b\ud83d"])


def test_callables() -> None:
    assert check_callables("logits_processor", {}) == []
    assert check_callables("logits_processor", {"logits_processor": [len]}) == [len]
    for bad in (5, (len,), [len, 5]):
        with pytest.raises(InvalidRequestError) as caught:
            check_callables("logits_processor", {"logits_processor": bad})
        assert caught.value.parameter == "logits_processor"
