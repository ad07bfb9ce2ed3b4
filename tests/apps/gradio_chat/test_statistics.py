"""Statistics and errors in words."""

from __future__ import annotations

from asyncgen import (
    Completion,
    ContextLengthError,
    EngineClosedError,
    EngineDiedError,
    InvalidRequestError,
    OverloadedError,
    Sample,
    Timing,
    Usage,
)
from asyncgen_apps.gradio_chat.statistics import describe, figures
from tests.cases import for_each


def test_figures_of_an_answer() -> None:
    sample = Sample(0, "x", (1, 2), "stop", "END")
    shown = figures(Completion((sample,), Usage(7, 2), Timing(0.002, 0.25, 61.0, 12.34)))
    assert shown == {
        "tokens": "2 tokens",
        "first token": "first after 250 ms",
        "speed": "12.3 tokens/s",
        "ended by": "complete",
        "stop string": "`END`",
        "prompt": "7 tokens",
        "in the queue": "2 ms",
        "in all": "1.0 min",
    }


def test_figures_of_an_answer_stopped_before_its_first_token() -> None:
    sample = Sample(0, "", (), "cancelled")
    shown = figures(Completion((sample,), Usage(1, 0), Timing(None, None, 2.0, None)))
    assert shown == {
        "tokens": "0 tokens", "ended by": "stopped", "prompt": "1 token", "in all": "2.0 s"
    }  # fmt: skip


@for_each(
    ("error", "words"),
    [
        (OverloadedError("64 wait", 3.0), "try again in 3 s"),
        (EngineDiedError("boom"), "must be started again"),
        (EngineClosedError("x"), "The server is closing."),
        (InvalidRequestError("top_p", 3, "from 0 to 1"), "`top_p` is 3: from 0 to 1"),
        (
            ContextLengthError("max_new_tokens", None, "it has 9"),
            "too long for the model: it has 9",
        ),
        (
            ContextLengthError("prompt", "12 tokens", "the context holds 9"),
            "too long for the model: it has 12 tokens; the context holds 9",
        ),
        (ContextLengthError("max_new_tokens", 99, "only 9"), "`max_new_tokens` is 99: only 9"),
        (KeyError("k"), "KeyError: 'k'"),
        (RuntimeError(), "Something went wrong: RuntimeError"),
    ],
)
def test_errors(error: Exception, words: str) -> None:
    assert words in describe(error)
