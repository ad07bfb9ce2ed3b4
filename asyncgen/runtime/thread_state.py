"""Read and put back what code may change of the thread and of the process that it computes in.

A field of a state is a pair of functions: one reads it, in well under a microsecond, the other puts
an earlier value back. A mode that a field knows nothing of is not seen here.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import torch
import torch.utils._device as default_device

from asyncgen.runtime.beside import call_elsewhere

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_C: Any = torch._C
_DEVICES = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)
_PRECISIONS = [
    (backend, op)
    for backend in ("mkldnn", "cuda")[: len(_DEVICES)]
    for op in ("all", "matmul", "conv", "rnn")
]
_ONE, _TINY, _SUBNORMAL = 1.0, 1e-30, 5e-324

State: TypeAlias = tuple[Any, ...]
"""Value of every field."""

Changes: TypeAlias = list[tuple["_Field", Any]]
"""Fields to put back, and their values."""


class _Field(NamedTuple):
    """One thing that code may change.

    Attributes:
        read: Returns a value that can be compared.
        write: Puts such a value back.
    """

    read: Callable[[], Any]
    write: Callable[[Any], object]


_here = threading.local()
"""Guards that this thread entered and does not end, as ``guards``."""

_MOST_GUARDS = 512


def _gradients() -> tuple[bool, bool, bool]:
    return torch.is_inference_mode_enabled(), torch.is_grad_enabled(), _C._is_fwd_grad_enabled()


def _set_gradients(value: tuple[bool, bool, bool]) -> None:
    is_inference, grad, forward = value
    if torch.is_inference_mode_enabled() != is_inference:
        guards: list[Any] = _here.__dict__.setdefault("guards", [])
        if len(guards) >= _MOST_GUARDS:
            # The end of a guard writes what was before it to the thread that ends it.
            call_elsewhere(guards.clear)
        guards.append(_C._InferenceMode(is_inference))
        guards[-1].__enter__()
    torch._C._set_grad_enabled(grad)
    _C._set_fwd_grad_enabled(forward)


def _function_modes() -> tuple[Any, ...]:
    """Return the modes from the bottom up, and the one of ``torch.set_default_device``."""
    count = _C._len_torch_function_stack()
    if not count:
        return ()
    modes = [_C._get_function_stack_at(place) for place in range(count)]
    return (getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None), *modes)


def _set_function_modes(value: tuple[Any, ...]) -> None:
    _drop_function_modes()
    for mode in value[1:]:
        _C._push_on_torch_function_stack(mode)
    torch._GLOBAL_DEVICE_CONTEXT.device_context = value[0] if value else None


def _drop_function_modes() -> None:
    while _C._len_torch_function_stack():
        _C._pop_torch_function_stack()


def _dispatch_modes() -> tuple[Any, ...]:
    count = _C._len_torch_dispatch_stack()
    return tuple([_C._get_dispatch_stack_at(place) for place in range(count)]) if count else ()


def _set_dispatch_modes(value: tuple[Any, ...]) -> None:
    while _C._len_torch_dispatch_stack():
        _C._pop_torch_dispatch_stack(None)
    for mode in value:
        _C._push_on_torch_dispatch_stack(mode)


def _overriding() -> tuple[bool, bool]:
    """Return whether modes and tensors may replace functions; and whether nothing may."""
    return _C._is_torch_function_enabled(), _C._is_torch_function_all_disabled()


def _set_overriding(value: tuple[bool, bool]) -> None:
    states = _C._TorchFunctionState
    state = states.ENABLED if value[0] else states.SUBCLASSES_DISABLED
    _C._set_torch_function_state(states.ALL_DISABLED if value[1] else state)


def _saved_hooks() -> tuple[Any, ...]:
    if _C._autograd._top_saved_tensors_default_hooks(True) is None:
        return ()
    found = _pop_hooks()
    _push_hooks(found)
    return tuple(found)


def _set_saved_hooks(value: tuple[Any, ...]) -> None:
    _pop_hooks()
    _push_hooks(value)


def _pop_hooks() -> list[Any]:
    found: list[Any] = []
    while (top := _C._autograd._top_saved_tensors_default_hooks(True)) is not None:
        found.insert(0, top)
        _C._autograd._pop_saved_tensors_default_hooks()
    return found


def _push_hooks(hooks: Iterable[Any]) -> None:
    for pack, unpack in hooks:
        _C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def _autocast() -> tuple[Any, ...]:
    nesting = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    if not (nesting or _C._is_any_autocast_enabled()):
        return 0, torch.is_autocast_cache_enabled(), torch.get_autocast_dtype("cpu")
    return nesting, torch.is_autocast_cache_enabled(), *_autocast_devices()


def _autocast_devices() -> list[tuple[str, bool, torch.dtype]]:
    return [
        (device, torch.is_autocast_enabled(device), torch.get_autocast_dtype(device))
        for device in _DEVICES
    ]


def _set_autocast(value: tuple[Any, ...]) -> None:
    nesting, caches, *devices = value
    while torch.autocast_increment_nesting() <= nesting:
        pass
    while torch.autocast_decrement_nesting() > nesting:
        pass
    if not nesting:
        torch.clear_autocast_cache()
    torch.set_autocast_cache_enabled(caches)
    if isinstance(devices[0], torch.dtype):
        torch.set_autocast_dtype("cpu", devices[0])
        devices = [(name, False, None) for name in _DEVICES]
    for name, is_enabled, dtype in devices:
        torch.set_autocast_enabled(name, is_enabled)
        if dtype is not None:
            torch.set_autocast_dtype(name, dtype)


def _arithmetic() -> tuple[bool, bool, bool]:
    """Return whether sums round to the nearest, from below and above; and subnormals count."""
    return _ONE + _TINY == _ONE, _ONE - _TINY == _ONE, _SUBNORMAL > 0.0


def _set_arithmetic(value: tuple[bool, bool, bool]) -> None:
    torch.set_flush_denormal(not value[2])
    if value[:2] == (True, True):
        ctypes.CDLL(None if os.name == "posix" else "ucrtbase").fesetround(0)


def _precisions() -> tuple[Any, ...]:
    try:
        common = _C._get_float32_matmul_precision()
    except RuntimeError:  # the settings of backends say something else
        common = None
    return common, *itertools.starmap(_C._get_fp32_precision_getter, _PRECISIONS)


def _set_precisions(value: tuple[Any, ...]) -> None:
    if value[0] is not None:
        torch.set_float32_matmul_precision(value[0])
    for (backend, op), precision in zip(_PRECISIONS, value[1:], strict=True):
        _C._set_fp32_precision_setter(backend, op, precision)


def _determinism() -> tuple[bool, bool, bool]:
    return (
        _C._get_deterministic_algorithms(),
        _C._get_deterministic_algorithms_warn_only(),
        _C._get_deterministic_fill_uninitialized_memory(),
    )


def _set_determinism(value: tuple[bool, bool, bool]) -> None:
    _C._set_deterministic_algorithms(value[0], warn_only=value[1])
    _C._set_deterministic_fill_uninitialized_memory(value[2])


def _set_anomaly(is_enabled: bool) -> None:
    torch.set_anomaly_enabled(is_enabled, torch.is_anomaly_check_nan_enabled())


def _set_default_device(device: Any) -> None:
    default_device.CURRENT_DEVICE = device


def _backend(getter: str, setter: str) -> _Field:
    return _Field(getattr(_C, f"_get_{getter}"), getattr(_C, f"_set_{setter}"))


_OF_TORCH = [
    _Field(_gradients, _set_gradients),
    _Field(_dispatch_modes, _set_dispatch_modes),
    _Field(_saved_hooks, _set_saved_hooks),
    _Field(_autocast, _set_autocast),
    _Field(
        _C._functorch.get_dynamic_layer_stack_depth,
        _C._functorch.pop_dynamic_layer_stack_and_undo_to_depth,
    ),
    _Field(_overriding, _set_overriding),
    # Last, since modes see what the others are written with.
    _Field(_function_modes, _set_function_modes),
]
"""State of torch that each thread has for itself."""

_OF_ALL = [
    _Field(torch.get_default_dtype, torch.set_default_dtype),
    _Field(partial(getattr, default_device, "CURRENT_DEVICE"), _set_default_device),
    _Field(_precisions, _set_precisions),
    _Field(_determinism, _set_determinism),
    _Field(torch.is_anomaly_enabled, _set_anomaly),
    _backend("mkldnn_enabled", "mkldnn_enabled"),
    _backend("mkldnn_deterministic", "mkldnn_deterministic"),
    _backend("nnpack_enabled", "nnpack_enabled"),
    _backend("flash_sdp_enabled", "sdp_use_flash"),
    _backend("math_sdp_enabled", "sdp_use_math"),
    _backend("mem_efficient_sdp_enabled", "sdp_use_mem_efficient"),
    _backend("cudnn_sdp_enabled", "sdp_use_cudnn"),
    _backend("cudnn_enabled", "cudnn_enabled"),
    _backend("cudnn_benchmark", "cudnn_benchmark"),
    _backend("cudnn_deterministic", "cudnn_deterministic"),
]
"""Settings of torch that the whole process shares."""

_ALL = [
    *_OF_ALL,
    _Field(_arithmetic, _set_arithmetic),
    _Field(torch.get_num_threads, torch.set_num_threads),
    *_OF_TORCH,
]
"""The same, and the state of this thread."""

_READERS = [field.read for field in _ALL]


def read_state() -> State:
    """Read every field."""
    return tuple([read() for read in _READERS])


def with_settings(state: State, settings: State) -> State:
    """Return a state with the settings of the process of another one."""
    count = len(_OF_ALL)
    return (*settings[:count], *state[count:])


def put_back(before: State, found: State, wanted: State) -> None:
    """Give the fields that differ from what was before the values that are wanted."""
    fields = zip(_ALL, before, found, wanted, strict=True)
    write_changes([(field, right) for field, old, now, right in fields if now != old])


def changes(wanted: State, found: State) -> Changes:
    """Return the fields that differ, with the values that are wanted."""
    if wanted == found:
        return []
    return [
        (field, value)
        for field, value, other in zip(_ALL, wanted, found, strict=True)
        if value != other
    ]


def write_changes(wanted: Changes) -> None:
    """Put fields back; no mode sees the calls that do it."""
    if wanted:
        modes = _function_modes()
        _drop_function_modes()
        for field, value in wanted:
            field.write(value)
        if not any(field.read is _function_modes for field, _ in wanted):
            _set_function_modes(modes)


def read_thread() -> State:
    """Read the fields that torch has for each thread."""
    return tuple([field.read() for field in _OF_TORCH])


def restore_thread(wanted: State | None = None) -> None:
    """Give this thread an earlier state of torch; by default that on which nothing has run."""
    pairs = zip(_OF_TORCH, _fresh if wanted is None else wanted, strict=True)
    found = [(field, value, field.read()) for field, value in pairs]
    write_changes([(field, value) for field, value, now in found if value != now])


def _read_fresh() -> State:
    """Read the fields that torch has for each thread, on a new one."""
    found: list[Any] = []
    call_elsewhere(lambda: found.extend(read_thread()))
    return tuple(found)


_fresh = _read_fresh()
