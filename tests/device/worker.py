"""A process that finds things out, one after another, until it is told no more.

A fault of the device ends its process, or every later call in it; so the caller gives each group
of items a new one, and ends what takes too long.
"""

from __future__ import annotations

import importlib
import tempfile
import traceback
from pathlib import Path
from time import perf_counter, time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from multiprocessing.connection import Connection

    from tests.device.plan import Item

__all__ = ["serve"]

OURS = ("tests", "asyncgen", "streamers", "asyncgen_apps")
"""Packages of the checkout; all others may be missing."""


def serve(orders: Connection, device: str) -> None:
    """Do what is ordered: pairs of an item and the time when it is ended; ``None`` ends.

    Each is answered with a dictionary for JSON. Times are those of `time.time`, which all
    processes share.
    """
    with tempfile.TemporaryDirectory(prefix="device-check-") as folder:
        context: Any = None
        while (order := orders.recv()) is not None:
            item, end = order
            start = perf_counter()
            if context is None:
                context = _context(device, Path(folder))
            context.deadline = perf_counter() + end - time()
            answer = _answer(context, item)
            orders.send({**answer, "seconds": perf_counter() - start})


def _context(device: str, folder: Path) -> Any:
    from tests.device.context import Context

    if device == "cpu":
        from tests.device.stand_in import put_in_place

        put_in_place()
    return Context(device, folder)


def _answer(context: Any, item: Item) -> dict[str, Any]:
    from tests.device.context import Skipped

    module, _, name = item.target.partition(":")
    try:
        found = getattr(importlib.import_module(f"tests.device.{module}"), name)(context, item)
    except Skipped as reason:
        return {"verdict": "left out", "says": str(reason)}
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in OURS:
            return _failure(error)
        return {"verdict": "left out", "says": f"{error.name} is not installed"}
    except Exception as error:
        return _failure(error)
    verdicts = {True: "holds", False: "fails", None: "figures"}
    return {"verdict": verdicts[found.holds], "says": found.says, "figures": found.figures}


def _failure(error: Exception) -> dict[str, Any]:
    said = next(iter(str(error).splitlines()), "")
    frames = traceback.extract_tb(error.__traceback__)[1:]
    trace = [f"{Path(each.filename).name}:{each.lineno} {each.name}" for each in frames[-8:]]
    return {"verdict": "error", "says": f"{type(error).__name__}: {said}", "trace": trace}
