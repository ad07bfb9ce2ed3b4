"""What code of a user draws is what torch's seed gives, and torch's generators do not move."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from asyncgen.runtime import user_draws
from asyncgen.runtime.user_code import (
    UserDraws,
    UserGenerator,
    drawing_from,
    run_user_code,
    share_thread,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator


X = torch.rand(5, 64, generator=torch.Generator().manual_seed(0))
W = torch.rand(64, 64, generator=torch.Generator().manual_seed(1))


class Negating(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Negates every product."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # which takes seconds to import

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        found = function(*args, **(kwargs or {}))
        return -found if "mul" in str(function) else found


made: Any = Negating


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.rand_like(x) + F.dropout(x, 0.5, True)


loose: Any = torch
functions: Any = F

DRAWS: dict[str, Callable[[], Any]] = {
    "rand": lambda: loose.rand(3),
    "rand in float64": lambda: loose.rand(3, dtype=loose.float64),
    "rand into": lambda: loose.rand(3, out=loose.empty(3)),
    "rand by torch's own": lambda: loose.rand(3, generator=loose.default_generator),
    "randn": lambda: loose.randn(40),
    "randint": lambda: loose.randint(2, 50, (30,)),
    "randperm": lambda: loose.randperm(40),
    "rand_like": lambda: loose.rand_like(X),
    "randn_like": lambda: loose.randn_like(X),
    "randint_like": lambda: loose.randint_like(X, 3, 90),
    "normal": lambda: loose.normal(X, X),
    "multinomial": lambda: loose.multinomial(W, 5),
    "bernoulli": lambda: loose.bernoulli(X),
    "bernoulli_": lambda: loose.empty(30).bernoulli_(0.3),
    "uniform_": lambda: loose.empty(30).uniform_(),
    "random_": lambda: loose.empty(30).random_(),
    "exponential_": lambda: loose.empty(30).exponential_(),
    "geometric_": lambda: loose.empty(30).geometric_(0.5),
    "cauchy_": lambda: loose.empty(30).cauchy_(),
    "log_normal_": lambda: loose.empty(30).log_normal_(),
    "poisson": lambda: loose.poisson(X * 9),
    "binomial": lambda: loose.binomial((X * 9).floor(), X),
    "gamma": lambda: loose.distributions.Gamma(X + 1, X + 1).sample(),
    "dirichlet": lambda: loose.distributions.Dirichlet(X + 1).sample(),
    "categorical": lambda: loose.distributions.Categorical(probs=X).sample(),
    "dropout": lambda: functions.dropout(X, 0.5, True),
    "native dropout": lambda: loose.cat(loose.native_dropout(X, 0.5, True)),
    "dropout of channels": lambda: functions.dropout1d(X[None], 0.5, True),
    "alpha_dropout": lambda: functions.alpha_dropout(X, 0.5, True),
    "feature_alpha_dropout": lambda: functions.feature_alpha_dropout(X, 0.5, True),
    "rrelu": lambda: functions.rrelu(-X, training=True),
    "gumbel_softmax": lambda: functions.gumbel_softmax(X),
    "attention": lambda: functions.scaled_dot_product_attention(
        X[None], X[None], X[None], dropout_p=0.5
    ),
    "LSTM": lambda: loose.nn.LSTM(4, 4, 2, dropout=0.5)(loose.ones(2, 2, 4))[0],
    "layer": lambda: loose.nn.TransformerEncoderLayer(8, 2)(loose.ones(2, 2, 8)),
    "init": lambda: loose.nn.init.trunc_normal_(loose.empty(4, 4)),
    "TorchScript": lambda: loose.jit.script(_scripted)(X),
    "vmap": lambda: loose.func.vmap(loose.rand_like, randomness="different")(X),
    "pooling": lambda: functions.fractional_max_pool2d(W[None, None], 2, output_size=4),
    "low rank": lambda: loose.svd_lowrank(W, 2)[1],
    "manual_seed": lambda: loose.rand(3, generator=loose.manual_seed(3)),
    "state": lambda: loose.get_rng_state(),
    "state again": lambda: (loose.rand(2), loose.set_rng_state(loose.get_rng_state()))[0],
    "initial_seed": lambda: loose.tensor(loose.initial_seed()),
}


def on_a_thread(function: Callable[[], object], shares: bool = True) -> None:
    failures: list[BaseException] = []

    def run() -> None:
        if shares:
            share_thread()
        try:
            function()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    if failures:
        raise failures[0]


def drawn(function: Callable[[], Any], seed: int = 7) -> Any:
    with drawing_from(UserDraws(seed)):
        return run_user_code(function)


@pytest.mark.parametrize("name", DRAWS)
@pytest.mark.filterwarnings("ignore")
def test_every_draw_is_the_one_of_the_seed_and_moves_no_generator(name: str) -> None:
    def twice() -> tuple[Any, Any]:
        return DRAWS[name](), torch.rand(2)

    def run() -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(7)
            wanted = twice()
        before = torch.get_rng_state()
        found = drawn(twice)
        assert all(map(torch.equal, found, wanted))
        assert torch.equal(before, torch.get_rng_state())

    on_a_thread(run)


def test_functions_of_torch_for_the_generator_are_the_requests_in_such_code_alone() -> None:
    def seeds() -> tuple[Any, ...]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            first = torch.rand(2)
        return first, torch.rand(2), torch.seed() == torch.initial_seed()

    def run() -> None:
        before = torch.get_rng_state()
        forked, after, same = drawn(seeds)
        assert torch.equal(before, torch.get_rng_state())
        assert torch.equal(forked, torch.rand(2, generator=torch.Generator().manual_seed(5)))
        assert torch.equal(after, torch.rand(2, generator=torch.Generator().manual_seed(7)))
        assert same

    on_a_thread(run)
    with torch.random.fork_rng(devices=[]):  # on a thread of the app they do what they did
        assert torch.manual_seed(3) is torch.default_generator
        assert torch.initial_seed() == 3


def test_requests_without_a_seed_of_their_own_differ_and_threads_too() -> None:
    found: list[torch.Tensor] = []
    for _ in range(2):
        on_a_thread(lambda: found.append(run_user_code(lambda: torch.rand(4))))
    assert not torch.equal(*found)


def test_a_generator_draws_on_from_where_it_was_whatever_is_drawn_between() -> None:
    def method() -> Generator[torch.Tensor, None, None]:
        while True:
            yield torch.rand(2)

    def run() -> None:
        with drawing_from(UserDraws(7)):
            generator = UserGenerator(method())
        found = []
        for seed in range(4):
            found.append(next(generator))
            drawn(lambda: torch.rand(5), seed)
        wanted = torch.Generator().manual_seed(7)
        assert all(torch.equal(each, torch.rand(2, generator=wanted)) for each in found)

    on_a_thread(run)


def test_modes_that_span_a_yield_are_the_generators_own_and_find_the_draws() -> None:
    def method() -> Generator[torch.Tensor, None, None]:
        with made():
            while True:
                yield torch.rand(2) * 1

    def run() -> None:
        generator = UserGenerator(method())
        for _ in range(3):
            assert (next(generator) < 0).all()
            assert torch._C._len_torch_dispatch_stack() == 0
        generator.close()
        assert torch._C._len_torch_dispatch_stack() == 0

    on_a_thread(run)


def test_code_that_takes_the_mode_away_or_leaves_others_ends_without_it() -> None:
    pop: Any = torch._C._pop_torch_dispatch_stack

    def run() -> None:
        drawn(lambda: pop(None))
        assert torch._C._len_torch_dispatch_stack() == 0
        drawn(lambda: made().__enter__())
        assert torch._C._len_torch_dispatch_stack() == 0

    on_a_thread(run)


@pytest.mark.parametrize("name", ["rand_like", "randn_like", "randint_like"])
def test_older_versions_of_torch_draw_the_same(name: str) -> None:
    func: Any = getattr(torch.ops.aten, name)
    func = func.low_dtype if name == "randint_like" else func.default
    args = (X, 3, 90) if name == "randint_like" else (X,)
    found = user_draws._fill(UserDraws(7), func, args, {"dtype": torch.float64})
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        assert torch.equal(found, func(*args, dtype=torch.float64))


def test_meta_tensors_and_given_generators_are_left_alone() -> None:
    def code() -> tuple[Any, ...]:
        own = torch.Generator().manual_seed(2)
        shape = torch.rand_like(torch.empty(3, device="meta")).uniform_().shape
        return torch.rand(2, generator=own), shape, torch.rand(2)

    def run() -> None:
        first, shape, after = drawn(code)
        assert torch.equal(first, torch.rand(2, generator=torch.Generator().manual_seed(2)))
        assert shape == (3,)
        assert torch.equal(after, torch.rand(2, generator=torch.Generator().manual_seed(7)))

    on_a_thread(run)


@pytest.mark.soak
def test_compiled_code_stays_compiled_and_draws_by_the_seed() -> None:
    code = """
import threading, torch
from asyncgen.runtime.user_code import *
from torch._dynamo.testing import CompileCounterWithBackend
counter = CompileCounterWithBackend("aot_eager")
compiled = torch.compile(lambda x: torch.rand_like(x) + x, backend=counter)
def run():
    share_thread()
    found = []
    for _ in range(3):
        with drawing_from(UserDraws(7)):
            found.append(run_user_code(compiled, torch.zeros(2, 16)))
    torch.manual_seed(7)
    assert all(torch.equal(each, compiled(torch.zeros(2, 16))) for each in found[:1]), found
    assert torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])
    assert counter.frame_count == 1, counter.frame_count
    print("done")
thread = threading.Thread(target=run)
thread.start()
thread.join()
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "done\n", found.stderr
