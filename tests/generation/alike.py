"""Runs the same thing here and in transformers, and compares what both complain of."""

from __future__ import annotations

import ast
import contextlib
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch
import transformers

from asyncgen.generation.config import generation_config as config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Outcome = tuple[type[BaseException] | None, list[str], list[type[Warning]]]


class _Records(logging.Handler):
    """Collects warnings, less their wording."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.flags: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if "[" in message:
            listed = message[message.index("[") : message.index("]") + 1]
            self.flags.extend(ast.literal_eval(listed))
        elif "`max_cache_len`" in message:
            self.flags.append("max_cache_len")


@contextlib.contextmanager
def records(name: str) -> Iterator[_Records]:
    """Collect what a logger is told."""
    handler, logger = _Records(), logging.getLogger(name)
    logger.addHandler(handler)
    try:
        yield handler
    finally:
        logger.removeHandler(handler)


def outcome(name: str, call: Callable[[], Any]) -> Outcome:
    """Tell how a call ends: exception class, flags that were warned of, other warnings."""
    config._warn_once.cache_clear()
    transformers.utils.logging.warning_once.cache_clear()
    raised: type[BaseException] | None = None
    with warnings.catch_warnings(record=True) as caught, records(name) as logged:
        warnings.simplefilter("always")
        try:
            call()
        except (ValueError, TypeError, AttributeError) as error:
            raised = type(error)
    return raised, sorted(logged.flags), [each.category for each in caught]


def plain(values: dict[str, Any]) -> dict[str, Any]:
    """Fields of a configuration, without the version that wrote them."""
    return {name: value for name, value in values.items() if name != "transformers_version"}


def same(
    ours: Callable[[], Any], theirs: Callable[[], Any], *, several_faults: bool = False
) -> bool:
    """Tell whether both end alike: the same class of exception, or the same warnings.

    Where there may be several faults, either may be found first, and any exception will do.
    """
    raised, *rest = outcome("asyncgen.generation", ours)
    expected, *expected_rest = outcome("transformers.generation.configuration_utils", theirs)
    if raised is None or expected is None:
        return raised is expected and rest == expected_rest
    if several_faults:
        return True
    if expected is AttributeError:
        expected = TypeError  # they fail on a method of the wrong object
    return issubclass(raised, expected)


def same_layers(ours: tuple[torch.Tensor, ...], theirs: tuple[torch.Tensor, ...]) -> None:
    """Check that two tuples hold the same tensors, to float32's precision at their scale."""
    for one, other in zip(ours, theirs, strict=True):
        finite = other[other.isfinite()]
        scale = max(1.0, float(finite.abs().max()) if finite.numel() else 1.0)
        torch.testing.assert_close(one, other, atol=2e-5 * scale, rtol=1e-4)
