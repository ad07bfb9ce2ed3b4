"""What code of a user may leave behind on the thread that runs it, and what it may raise."""

from __future__ import annotations

import contextvars
import ctypes
import sys
from asyncio import CancelledError
from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from asyncgen.runtime.thread_state import read_state
from asyncgen.runtime.user_draws import DrawingMode

Leave: TypeAlias = Callable[[], object]
"""Leaves something behind, or raises, wherever it is called."""

_held: list[Any] = []
"""Contexts that were entered and not left; a context that is dropped may leave itself."""

number: contextvars.ContextVar[int] = contextvars.ContextVar("number", default=0)


def enter(make: Callable[[], Any]) -> None:
    context = make()
    context.__enter__()
    _held.append(context)


class Negating(TorchFunctionMode):
    """Spoils every computation that torch's functions begin."""

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function.__name__ in ("argmax", "softmax", "log_softmax", "embedding", "zeros", "empty"):
            raise AssertionError(function.__name__)
        return function(*args, **(kwargs or {}))


class Shifting(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Spoils every sum that torch computes."""

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        return -found if "softmax" in str(function) or "mul" in str(function) else found


def hook(tensor: Any) -> Any:
    raise AssertionError("a hook for saved tensors of another")


def trace(frame: Any, *_: Any) -> None:
    """Trace or profile; fails in the engine, where it would end the thread."""
    if "asyncgen/engine" in frame.f_code.co_filename and not _stack_has(frame, __file__):
        raise AssertionError("a tracer of another")


def _stack_has(frame: Any, file: str) -> bool:
    while frame is not None and frame.f_code.co_filename != file:
        frame = frame.f_back
    return frame is not None


def fail(error: BaseException) -> None:
    raise error


def nest() -> None:
    nest()


def lower_limit() -> None:
    """Lower the limit of recursion, which all threads share, and leave each room for its calls."""
    sys.setrecursionlimit(max(map(_depth, sys._current_frames().values())) + 300)


def _depth(frame: Any) -> int:
    depth = 0
    while frame is not None:
        depth, frame = depth + 1, frame.f_back
    return depth


_mkldnn: Any = torch.backends.mkldnn

LEFT: dict[str, Leave] = {
    "nothing": lambda: None,
    "inference mode": lambda: enter(torch.inference_mode),
    "gradients": lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
    "default device": lambda: torch.set_default_device("meta"),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "autocast": lambda: enter(lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    "autocast dtype": lambda: torch.set_autocast_dtype("cpu", torch.float16),
    "function mode": lambda: enter(Negating),
    "no function modes": lambda: enter(torch._C.DisableTorchFunction),
    "dispatch mode": lambda: enter(Shifting),
    "precision": lambda: torch.set_float32_matmul_precision("medium"),
    "precision of a backend": lambda: setattr(_mkldnn.matmul, "fp32_precision", "bf16"),
    "determinism": lambda: torch.use_deterministic_algorithms(True),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "mkldnn": lambda: torch._C._set_mkldnn_enabled(False),
    "attention": lambda: torch.backends.cuda.enable_math_sdp(False),
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "subnormals": lambda: torch.set_flush_denormal(True),
    "rounding": lambda: ctypes.CDLL(None).fesetround(0x800),
    "saved tensors": lambda: enter(lambda: torch.autograd.graph.saved_tensors_hooks(hook, hook)),
    "vmap": lambda: torch._C._functorch._vmap_increment_nesting(2, "error"),
    "tracer": lambda: sys.settrace(trace),
    "profiler": lambda: sys.setprofile(trace),
    "recursion limit": lower_limit,
    "numpy": lambda: np.seterr(all="raise"),
    "context variable": lambda: number.set(7),
}

RAISED: dict[str, Leave] = {
    type(error).__name__: partial(fail, error)
    for error in (
        BaseException("x"),
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        StopIteration(5),
        StopAsyncIteration(),
        CancelledError(),
        MemoryError(),
        EOFError(),
    )
} | {"recursion": nest}


def seen() -> tuple[Any, ...]:
    """Return everything that a row of `LEFT` changes on this thread.

    The mode through which user code draws is of its request, so each has another one.
    """
    python = sys.gettrace(), sys.getprofile(), sys.getrecursionlimit()
    state = [_without_draws(value) for value in read_state()]
    return (*state, *python, tuple(np.geterr().items()), number.get())


def _without_draws(value: Any) -> Any:
    if not isinstance(value, tuple):
        return value
    return tuple(each for each in value if not isinstance(each, DrawingMode))
