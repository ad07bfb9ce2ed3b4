"""Give code of a user random numbers of its request's own, in place of torch's global generators.

While such code runs, a mode of torch sees each operation that draws, wherever it is called from
(a layer of dropout, a distribution, compiled C++ of torch), and hands it the generator of the
request. The numbers are those that the global generator gives after ``torch.manual_seed(seed)``.
The functions of torch that read, seed or set the global generators do that to the request's own
there; everywhere else they do what they always do.

Not seen here: an operation outside torch (``random``, NumPy, a kernel of another library), threads
that the code starts, and the methods of ``torch.default_generator``.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

if TYPE_CHECKING:
    from asyncgen.runtime.user_code import UserDraws


_C: Any = torch._C
_aten: Any = torch.ops.aten
_OpOverload: Any = torch._ops.OpOverload
_SEEDS = 2**64

_Rule: TypeAlias = Callable[["UserDraws", Any, tuple[Any, ...], dict[str, Any]], Any]
"""Runs an operation that draws: of the draws, the operation, and its arguments."""

_rules: dict[Any, _Rule | None] = {}
"""How each operation runs that was met so far; ``None`` where it draws nothing."""

_borrowing = threading.Lock()


def generator_of(draws: UserDraws, device: torch.device | str) -> torch.Generator:
    """Return the generator of a request on a device, seeded at its first use."""
    where = torch.device(device)
    if where.type == "cuda" and where.index is None:
        where = torch.device("cuda", torch.cuda.current_device())
    found: torch.Generator | None = draws.generators.get(where)
    if found is None:
        found = draws.generators[where] = torch.Generator(where)
        found.manual_seed(draws.seed % _SEEDS)
    return found


class DrawingMode(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Redirects each operation that draws on the thread that it is entered on."""

    supports_higher_order_operators = True

    def __init__(self, draws: UserDraws) -> None:
        """Draw from these."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.draws = draws

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # its wrapper would cost as much as the rest

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Let ``torch.compile`` compile code that runs below this mode."""
        return True

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run an operation."""
        try:
            rule = _rules[func]
        except KeyError:
            rule = _rules[func] = _rule_of(func)
        if rule is not None:
            return rule(self.draws, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


def enter(mode: DrawingMode) -> None:
    """Enter it below the modes that this thread is in, which end before it."""
    above = _take_modes()
    _C._push_on_torch_dispatch_stack(mode)
    for each in above:
        _C._push_on_torch_dispatch_stack(each)


def leave(mode: DrawingMode) -> None:
    """Leave it, wherever it is; other modes that were left entered stay."""
    if _C._len_torch_dispatch_stack() == 1 and _C._get_dispatch_stack_at(0) is mode:
        _C._pop_torch_dispatch_stack(None)
        return
    for each in _take_modes():
        if each is not mode:
            _C._push_on_torch_dispatch_stack(each)


def _take_modes() -> list[Any]:
    found: list[Any] = []
    while _C._len_torch_dispatch_stack():
        found.insert(0, _C._pop_torch_dispatch_stack(None))
    return found


def _rule_of(func: Any) -> _Rule | None:
    """Find out how an operation draws."""
    if not isinstance(func, _OpOverload) or torch.Tag.nondeterministic_seeded not in func.tags:
        return None
    names = _argument_names(func)
    if "generator" in names:
        return functools.partial(_give, names.index("generator"))
    if func is _aten.native_dropout.default:
        return _drop
    for name in func.overloadpacket.overloads():
        other = getattr(func.overloadpacket, name)
        if _signature(other) == _signature(func) and "generator" in _argument_names(other):
            return functools.partial(_replace, other)
    if func in _FILLERS:
        return _fill
    return _borrow


def _argument_names(func: Any) -> list[str]:
    return [each.name for each in func._schema.arguments]


def _signature(func: Any) -> list[tuple[str, str]]:
    """Return what an operation takes beside a generator."""
    return [(a.name, str(a.type)) for a in func._schema.arguments if a.name != "generator"]


def _give(
    place: int, draws: UserDraws, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Hand over the request's generator, unless the code gave one of its own."""
    given = args[place] if len(args) > place else kwargs.get("generator")
    if given is None or _is_global(given):
        device = _device_of(args, kwargs)
        if device.type != "meta":
            own = generator_of(draws, device)
            if len(args) > place:
                args = (*args[:place], own, *args[place + 1 :])
            else:
                kwargs = {**kwargs, "generator": own}
    return func(*args, **kwargs)


def _replace(
    other: Any, draws: UserDraws, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run the operation of the same name that takes a generator."""
    device = _device_of(args, kwargs)
    if device.type == "meta":
        return func(*args, **kwargs)
    return other(*args, **{**kwargs, "generator": generator_of(draws, device)})


_FILLERS: dict[Any, Callable[..., Any]] = {
    _aten.rand_like.default: lambda out, own: out.uniform_(generator=own),
    _aten.randn_like.default: lambda out, own: out.normal_(generator=own),
    _aten.randint_like.default: lambda out, own, high: out.random_(0, high, generator=own),
    _aten.randint_like.low_dtype: lambda out, own, low, high: out.random_(low, high, generator=own),
}
"""For versions of torch in which they take no generator."""


def _fill(draws: UserDraws, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fill a tensor like another."""
    out = _aten.empty_like.default(args[0], **kwargs)
    if out.device.type == "meta":
        return out
    return _FILLERS[func](out, generator_of(draws, out.device), *args[1:])


def _drop(draws: UserDraws, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Drop out as the operation does that has no generator."""
    values, chance, train = args
    if train is False or values.device.type == "meta" or not values.numel():
        return func(*args, **kwargs)
    own, kept = generator_of(draws, values.device), 1.0 - chance
    if values.device.type == "cuda":
        out, mask = _aten._fused_dropout.default(values, kept, own)
        return out, mask.bool()
    mask = torch.empty_like(values, dtype=torch.bool).bernoulli_(kept, generator=own)
    return values.mul(mask).mul_(1.0 / kept if kept else 0.0), mask


def _borrow(draws: UserDraws, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation of CUDA that knows no generator but the global one.

    That one holds the request's state meanwhile. Threads that draw on the device at the same
    moment are seen by it.
    """
    device = _device_of(args, kwargs)
    names = _argument_names(func)
    given = dict(zip(names, args, strict=False)) | kwargs
    chance = given.get("dropout_p", given.get("dropout", 0.0))
    if device.type != "cuda" or not chance:
        return func(*args, **kwargs)
    own = generator_of(draws, device)
    shared = torch.cuda.default_generators[own.device.index]
    with _borrowing:
        before = shared.get_state()
        shared.set_state(own.get_state())
        try:
            return func(*args, **kwargs)
        finally:
            own.set_state(shared.get_state())
            shared.set_state(before)


def _device_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    """Return where an operation computes."""
    out = kwargs.get("out")
    if isinstance(out, torch.Tensor):
        return out.device
    stated = kwargs.get("device")
    if stated is not None:
        return torch.device(stated)
    for each in args:
        if isinstance(each, torch.Tensor):
            return each.device
    return torch.device("cpu")


def _is_global(given: Any) -> bool:
    """Tell whether a generator is one of torch's own; an operation sees another object of it."""
    shared: Any = torch.default_generator
    if given.device.type == "cuda":
        shared = torch.cuda.default_generators[given.device.index]
    return bool(given._cdata == shared._cdata)


def _reseed(draws: UserDraws, seed: int) -> None:
    draws.seed = int(seed)
    for own in draws.generators.values():
        own.manual_seed(draws.seed % _SEEDS)


def _manual_seed(draws: UserDraws, seed: int) -> torch.Generator:
    _reseed(draws, seed)
    return generator_of(draws, "cpu")


def _seed(draws: UserDraws) -> int:
    seed = torch.Generator().seed()
    _reseed(draws, seed)
    return seed


def _cuda_device(device: Any) -> torch.device:
    if isinstance(device, int):
        return torch.device("cuda", device)
    return torch.device(device)


_OF_CPU: dict[str, Callable[..., Any]] = {
    "manual_seed": _manual_seed,
    "seed": _seed,
    "initial_seed": lambda draws: generator_of(draws, "cpu").initial_seed(),
    "get_rng_state": lambda draws: generator_of(draws, "cpu").get_state(),
    "set_rng_state": lambda draws, new_state: generator_of(draws, "cpu").set_state(new_state),
}
_OF_CUDA: dict[str, Callable[..., Any]] = {
    "manual_seed": _reseed,
    "manual_seed_all": _reseed,
    "get_rng_state": lambda draws, device="cuda": generator_of(
        draws, _cuda_device(device)
    ).get_state(),
    "set_rng_state": lambda draws, new_state, device="cuda": generator_of(
        draws, _cuda_device(device)
    ).set_state(new_state),
}
"""What the functions of torch do to the generators of a request."""


def redirect_functions(active: Callable[[], UserDraws | None]) -> None:
    """Let torch's functions for its generators ask first whether code of a user runs here.

    Args:
        active: Returns the draws of the code that runs on this thread, if there is any.
    """
    modules = [(torch, _OF_CPU), (torch.random, _OF_CPU)]
    if torch.cuda.is_available():
        modules += [(torch.cuda, _OF_CUDA), (torch.cuda.random, _OF_CUDA)]
    for module, functions in modules:
        for name, own in functions.items():
            setattr(module, name, _either(getattr(module, name), own, active))


def _either(
    usual: Callable[..., Any], own: Callable[..., Any], active: Callable[[], UserDraws | None]
) -> Callable[..., Any]:
    @functools.wraps(usual)
    def either(*args: Any, **kwargs: Any) -> Any:
        draws = active()
        return usual(*args, **kwargs) if draws is None else own(draws, *args, **kwargs)

    return either


def _keep_from_compilers() -> None:
    """Tell ``torch.compile`` not to compile this module where compiled code of a user calls it."""
    frames = _C._dynamo.eval_frame
    if hasattr(frames, "skip_code"):
        skip = frames.skip_code
    else:
        action = frames._FrameAction
        way = frames._FrameExecStrategy(action.SKIP, action.DEFAULT)
        skip = functools.partial(_set_way, frames, way)
    found = [*globals().values(), *vars(DrawingMode).values()]
    for each in found:
        if getattr(each, "__module__", None) == __name__ and hasattr(each, "__code__"):
            skip(each.__code__)


def _set_way(frames: Any, way: Any, code: Any) -> None:
    frames.set_code_exec_strategy(code, way)


_keep_from_compilers()
