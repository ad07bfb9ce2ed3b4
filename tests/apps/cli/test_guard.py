from __future__ import annotations

import pytest
import typer

from asyncgen import InvalidRequestError
from asyncgen_apps.cli.guard import UserError, describe, one_line_errors
from asyncgen_apps.cli.options import SettingError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (UserError("give a PROMPT"), "give a PROMPT"),
        (SettingError("unknown setting"), "unknown setting"),
        (InvalidRequestError("top_p", 2, "up to 1"), "`top_p` is 2: up to 1"),
        (KeyError("x"), "KeyError: 'x' (--debug shows the traceback)"),
        (RuntimeError(), "RuntimeError"),
    ],
)
def test_errors_in_words(error: Exception, said: str) -> None:
    assert describe(error) == said


@pytest.mark.parametrize(
    ("error", "code"),
    [(UserError("x"), 1), (KeyboardInterrupt(), 130), (typer.Exit(5), 5), (OSError("x"), 1)],
)
def test_exit_codes(error: BaseException, code: int) -> None:
    with pytest.raises(typer.Exit) as caught, one_line_errors():
        raise error
    assert caught.value.exit_code == code


def test_debug_lets_errors_through() -> None:
    with pytest.raises(KeyError), one_line_errors(debug=True):
        raise KeyError
