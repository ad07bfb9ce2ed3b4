"""Check what a user passes as ``streamer=``; knows nothing of torch, as it may not be there yet."""

from __future__ import annotations

import inspect

from asyncgen.errors import InvalidRequestError


def check_streamer(streamer: object) -> None:
    """Check that an object has the methods of a streamer, which are called and not awaited.

    Raises:
        InvalidRequestError: It lacks one, or one is a coroutine function.
    """
    allowed = "an object with the methods `put` and `end`"
    methods = {name: getattr(streamer, name, None) for name in ("put", "end")}
    if not all(map(callable, methods.values())):
        raise InvalidRequestError("streamer", streamer, allowed)
    methods["fail"] = getattr(type(streamer), "fail", None)  # which nobody may need
    for name, method in methods.items():
        if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
            note = (
                f"{allowed} as plain functions, and nobody awaits its `async def {name}`: read an"
                " `AsyncTextIteratorStreamer`, or the stream itself, with `async for`"
            )
            raise InvalidRequestError("streamer", streamer, note)
