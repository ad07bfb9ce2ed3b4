"""Tell two orders of positional arguments apart by their types."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def takes_newer_positions(
    after: int, *names: str, **defaults: Any
) -> Callable[[Function], Function]:
    """Let a function take positional arguments in a newer order as well.

    The first argument on which the orders differ decides: in the documented order it is a number
    or a bool, in the newer one a configuration or ``None``.

    Args:
        after: Number of arguments that both orders begin with, ``self`` included.
        *names: Parameters that follow in the newer order; the older one has not the first of them.
        **defaults: Defaults of calls in the newer order, or with the first of these parameters,
            where they differ.

    Returns:
        A decorator. The function it makes raises ``TypeError`` for an argument too many, or given
        twice, as any function does.
    """

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            given = args[after:]
            if not given or isinstance(given[0], int):
                is_newer = not given and names[0] in kwargs
                return function(*args, **({**defaults, **kwargs} if is_newer else kwargs))
            if len(given) > len(names):
                most = after + len(names)
                raise TypeError(f"{function.__name__}() takes at most {most} positional arguments")
            for name, value in zip(names, given, strict=False):
                if name in kwargs:
                    raise TypeError(f"{function.__name__}() got two values for {name!r}")
                kwargs[name] = value
            return function(*args[:after], **{**defaults, **kwargs})

        return call  # type: ignore[return-value]

    return decorate
