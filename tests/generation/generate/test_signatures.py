"""What a user's function can be called with."""

from __future__ import annotations

from functools import partial
from typing import Any

from asyncgen.generation.generate.signatures import acceptable, own_parameters, parameter_names


def plain(model: Any, input_ids: Any, left_padding: int = 0) -> None:
    """A function without keywords of any name."""


def open_ended(model: Any, *args: Any, **kwargs: Any) -> None:
    """A function that takes everything."""


class Callable:
    def __call__(self, model: Any, draw: Any, own: int) -> None:
        """A method counts as well."""


def test_names_of_its_own() -> None:
    assert parameter_names(plain) == {"model", "input_ids", "left_padding"}
    assert own_parameters(plain) == {"left_padding"}
    assert own_parameters(open_ended) == frozenset()
    assert own_parameters(Callable()) == {"own"}
    assert own_parameters(partial(plain, left_padding=3)) == {"left_padding"}


def test_only_what_it_takes() -> None:
    given = {"left_padding": 1, "use_cache": True}
    assert acceptable(plain, given) == {"left_padding": 1}
    assert acceptable(open_ended, given) == given
    assert acceptable(print, given) is not None
