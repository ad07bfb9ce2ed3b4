"""Clients share seats, pages and prompt tokens evenly, whatever they send; counted in steps."""

from __future__ import annotations

import hashlib
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.engine.kv_cache import block_tables
from asyncgen.engine.kv_cache.block_pool import BlockPool
from asyncgen.engine.scheduling.client_shares import blocks_of_clients
from asyncgen.engine.scheduling.scheduler import FIFOScheduler, PrefillFirstScheduler, Scheduler
from tests.cases import for_each, some
from tests.doubles.clients import ORDERS, STEPS, Clients, Manner
from tests.doubles.paged import Loop, alone

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.scheduling.state import ScheduledRow

GREEDY = [
    Manner(n=16, queue=32),
    Manner(priority=2**31),
    Manner(new=(300, 400)),
    Manner(prompt=(20, 60)),
    Manner(cancels=0.2, queue=16),
    Manner(alike=True, n=4),
    Manner(new=(1, 3), queue=12),
]


@pytest.mark.parametrize("seats", some([2, 3, 8], 1))
@for_each(("first", "num_clients"), [(0, 2), (1, 3), (3, 5)])
def test_seats_are_shared(seats: int, first: int, num_clients: int) -> None:
    scheduler = ORDERS[seats % 3](BlockPool(10_000, 4))
    scheduler.max_running = seats
    manners = [Manner(), *GREEDY][first : first + num_clients]
    clients = Clients(
        Loop(scheduler, token_budget=1000), {str(each): m for each, m in enumerate(manners)}, first
    )
    for _ in range(STEPS):
        clients.step()
    clients.require_even(clients.seats)


@pytest.mark.parametrize("budget", some([16, 30, 64], 1))
@for_each("num_clients", [2, 5])
def test_prompt_tokens_are_shared(budget: int, num_clients: int) -> None:
    order = ORDERS[budget % 3]
    lengths = [(30, 60), (100, 160), (8, 12), (40, 40), (60, 100)][:num_clients]
    manners = {
        str(number): Manner(prompt=length, new=(1, 2), queue=6, priority=number * 10**6)
        for number, length in enumerate(lengths)
    }
    scheduler = order(BlockPool(10_000, 32))
    scheduler.max_running = budget
    clients = Clients(Loop(scheduler, token_budget=budget), manners, 0)
    for _ in range(STEPS):
        clients.step()
    clients.require_even(clients.prompt_tokens)


@pytest.mark.parametrize(
    ("order", "num_clients", "seed"),
    some(
        [
            *((order, num_clients, 1) for order in ORDERS for num_clients in (2, 4)),
            *((FIFOScheduler, number, seed) for number, seed in ((2, 4), (3, 0), (4, 7), (4, 10))),
        ],
        3,
    ),
)
def test_pages_are_shared(
    order: Callable[[BlockPool], Scheduler], num_clients: int, seed: int
) -> None:
    manners = [
        Manner(prompt=(8, 16), new=(20, 40)),
        Manner(prompt=(8, 16), new=(20, 40), n=16, queue=32, priority=2**31),
        Manner(prompt=(40, 60), new=(20, 40)),
        Manner(prompt=(4, 8), new=(60, 80), cancels=0.05),
    ][:num_clients]
    scheduler = order(BlockPool(160, 4))
    scheduler.max_running = 1000
    clients = Clients(
        Loop(scheduler, token_budget=1000), {str(each): m for each, m in enumerate(manners)}, seed
    )
    for _ in range(STEPS):
        clients.step()
    clients.require_even(clients.pages)


@pytest.mark.gate
@for_each("hog", GREEDY)
def test_a_new_client_gets_a_seat_soon(hog: Manner) -> None:
    """A seat within 8 steps, and an even share of the 200 after it came."""
    scheduler = FIFOScheduler(BlockPool(1000, 4))
    scheduler.max_running = 8
    manners = {"hog": hog}
    clients = Clients(Loop(scheduler, token_budget=64), manners, 0)
    for _ in range(50):
        clients.step()
    manners["late"] = Manner()
    clients.seats.clear()
    for _ in range(8):
        clients.step()
    assert clients.seats["late"] > 0
    for _ in range(STEPS - 8):
        clients.step()
    clients.require_even(clients.seats, iter(["late"]))


def test_a_request_that_gave_up_its_seat_resumes() -> None:
    scheduler = FIFOScheduler(BlockPool(1000, 4))
    scheduler.max_running = 4
    loop = Loop(scheduler, token_budget=100)
    hog = [loop.add([1, 2, number], 60, client="hog") for number in range(4)]
    for _ in range(20):
        loop.step()
    loop.add([5, 5], 5, client="late")
    loop.add([5, 6], 5, client="late")
    before = loop.model.num_computed
    loop.drain()
    assert [state.num_preemptions for state in hog] == [0, 0, 1, 1]
    assert all(state.generated_tokens == alone(state.initial_tokens, 60) for state in hog)
    # What it had in full pages is still there: the last page, and no more, is computed again.
    rest = 4 * 40 + 2 * (2 + 4)
    assert loop.model.num_computed - before <= rest + 2 * 4


def test_no_seat_stays_idle_that_somebody_could_use() -> None:
    scheduler = FIFOScheduler(BlockPool(1000, 4))
    scheduler.max_running = 6
    loop = Loop(scheduler, token_budget=100)
    for number in range(20):
        loop.add([1, number % 7, 2], 30, client="many")
    loop.add([3], 50, client="one")
    for _ in range(20):
        loop.step()
        assert scheduler.num_running == 6


def test_a_large_request_comes_to_its_turn_beside_small_ones() -> None:
    """It takes more than an even share of the pages, of which small ones always want some."""
    scheduler = FIFOScheduler(BlockPool(64, 4), safety_margin=0.0)
    loop = Loop(scheduler, token_budget=1000)
    clients = Clients(loop, {"small": Manner(queue=12)}, 0)
    for _ in range(10):
        clients.step()
    large = loop.add([1] * 200, 20, client="large")
    for _ in range(600):
        clients.step()
        if large.generated_len() == 20:
            break
    assert large.generated_tokens == alone([1] * 200, 20)


def trace(seed: int, order: Callable[[BlockPool], Scheduler], **manner: object) -> str:
    """All that a scheduler decided for one client, as a digest."""
    rng = random.Random(seed)
    scheduler = order(BlockPool(rng.choice([12, 40, 400]), 4, sharing=rng.random() < 0.7))
    scheduler.max_running = rng.choice([2, 6, 100])
    loop = Loop(scheduler, token_budget=rng.choice([4, 16, 100]))
    lines = []
    for step in range(150):
        if rng.random() < 0.4:
            prompt = [3] * rng.randrange(8) + [rng.randrange(7)] * rng.randint(1, 9)
            loop.add(prompt, rng.randint(1, 24), priority=rng.randint(-1, 1), **manner)  # type: ignore[arg-type]
        if scheduler.active_requests and rng.random() < 0.05:
            loop.cancel(rng.choice(scheduler.running()))
        rows = loop.step()
        lines.append(
            repr([(row.state.request_id, row.start, row.count, row.pages) for row in rows])
        )
        lines.append(f"{step} {scheduler.num_preemptions} {scheduler.num_waiting}")
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:16]


TRACES = ["63b2d68e36f6304e", "5b1ab5464e4a0191", "4b37735213d29a4f"]
"""As they were before there were clients, and tails."""


@pytest.mark.gate
@pytest.mark.parametrize("number", some(range(3), 1))
def test_one_client_notices_nothing(number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    digests = [trace(seed, ORDERS[number]) for seed in range(20)]
    assert [trace(seed, ORDERS[number], client="me") for seed in range(20)] == digests
    monkeypatch.setattr(block_tables, "_keep_partial_block", lambda pool, state: None)
    before = [trace(seed, ORDERS[number]) for seed in range(20)]
    assert hashlib.sha256("".join(before).encode()).hexdigest()[:16] == TRACES[number]
    assert before != digests


@pytest.mark.gate
@settings(max_examples=8, deadline=None)
@given(
    st.lists(st.sampled_from(GREEDY), min_size=2, max_size=4),
    st.integers(2, 10),
    st.integers(0, 1000),
)
def test_seats_are_shared_in_any_mix(manners: list[Manner], seats: int, seed: int) -> None:
    scheduler = FIFOScheduler(BlockPool(5000, 4))
    scheduler.max_running = seats
    loop = Loop(scheduler, token_budget=2000)
    clients = Clients(loop, {str(each): m for each, m in enumerate(manners)}, seed)
    for _ in range(STEPS):
        clients.step()
    clients.require_even(clients.seats)


class InOrder(Scheduler):
    """Scheduler of a user: all running requests, then all waiting ones."""

    def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
        return self.schedule([*self.running(), *self.waiting()], token_budget, cache_budget)


def test_an_order_that_a_user_wrote_shares_too() -> None:
    scheduler = InOrder(BlockPool(1000, 4))
    scheduler.max_running = 4
    manners = {"hog": Manner(priority=2**31, new=(100, 200)), "late": Manner()}
    clients = Clients(Loop(scheduler, token_budget=64), manners, 0)
    for _ in range(STEPS):
        clients.step()
    clients.require_even(clients.seats)
    assert scheduler.num_preemptions < STEPS / 8


def test_rows_of_many_clients_stay_for_some_tokens() -> None:
    """Every start computes the end of a row again, so one token a turn would be all overhead."""
    scheduler = FIFOScheduler(BlockPool(10_000, 4))
    scheduler.max_running = 4
    manners = {str(each): Manner() for each in range(24)}
    clients = Clients(Loop(scheduler, token_budget=200), manners, 0)
    for _ in range(STEPS):
        clients.step()
    generated = sum(state.generated_len() for state in clients.states)
    assert generated >= 4 * scheduler.num_preemptions > 0
    assert min(clients.seats[each] for each in manners) > 0


def test_a_request_that_waits_for_memory_takes_no_seat() -> None:
    """They would come back at once, since the seat helps nobody else, and go again."""
    scheduler = FIFOScheduler(BlockPool(64, 4), safety_margin=0.0)
    scheduler.max_running = 8
    loop = Loop(scheduler, token_budget=400)
    for number in range(5):
        loop.add([number] * 100, 20, client="large")
        loop.step()
    small = [loop.add([1, number], 200, client="small") for number in range(12)]
    for _ in range(12):
        loop.step()
    assert scheduler.num_running == 8
    assert not any(state.num_preemptions for state in small)


def test_a_row_that_comes_back_counts_all_its_pages() -> None:
    scheduler = FIFOScheduler(BlockPool(100, 4), safety_margin=0.0)
    scheduler.max_running = 4
    loop = Loop(scheduler, token_budget=400)
    hog = [loop.add([1, number] * 40, 60, client="hog") for number in range(4)]
    for _ in range(6):
        loop.step()
    for number in range(2):
        loop.add([5, number], 2, client="late")
    for _ in range(12):
        loop.step()
    assert [state.num_preemptions for state in hog] == [0, 0, 1, 1]
    assert scheduler.num_running == 4
    held = blocks_of_clients(scheduler.cache, scheduler.running())
    assert held["hog"] == sum(len(state.block_tables[0]) for state in hog)


@pytest.mark.parametrize("order", some([*ORDERS, InOrder], 1))
def test_fewer_tokens_than_clients_are_used_all_the_same(
    order: Callable[[BlockPool], Scheduler],
) -> None:
    """None is kept for who cannot use it: waits for memory, or has a row that must wait."""
    for seed in range(12):
        rng = random.Random(seed)
        scheduler = order(BlockPool(24, 1))
        scheduler.max_running = rng.choice([2, 16])
        loop = Loop(scheduler, token_budget=rng.choice([2, 5]))
        for number in range(30):
            prompt = [rng.randrange(7) for _ in range(rng.randint(1, 12))]
            loop.add(prompt, rng.randint(1, 12), client=str(number % 9))
        for _ in range(300):
            if scheduler.has_pending_requests():
                assert loop.step(), "an idle step"


def test_no_tokens_are_reserved_for_requests_without_memory() -> None:
    pool = BlockPool(64, 4)
    pool.reserve(40, "beside")
    loop = Loop(FIFOScheduler(pool, safety_margin=0.0), token_budget=1)
    loop.add([1] * 120, 4, client="large")
    small = loop.add([2, 3], 2, client="small")
    for _ in range(10):
        loop.step()
    assert small.generated_len() == 2


def test_prompts_of_others_skip_no_row_that_decodes() -> None:
    """Not even where prompts go first."""
    loop = Loop(PrefillFirstScheduler(BlockPool(4000, 4)), token_budget=16)
    decoding = loop.add([1, 2], 300, client="one")
    loop.step()
    for number in range(10):
        loop.add([number % 7] * 400, 1, client="other")
    for _ in range(100):
        loop.step()
    assert decoding.generated_len() == 101


def test_a_request_above_its_share_delays_others_briefly() -> None:
    """After a long wait it takes its turn; else those who came last would wait for it to begin."""
    scheduler = FIFOScheduler(BlockPool(100, 4), safety_margin=0.0)
    loop = Loop(scheduler, token_budget=400)
    long = loop.add([1] * 60, 320, client="long")
    for _ in range(45):
        loop.step()
    large = loop.add([2] * 320, 8, client="large")
    clients = Clients(loop, {"small": Manner(prompt=(3, 3), new=(5, 5), queue=1)}, 0)
    waited = longest = 0
    for _ in range(120):
        clients.step()
        waited = 0 if any(s.client == "small" for s in scheduler.running()) else waited + 1
        longest = max(longest, waited)
    assert large.generated_len() == 8
    assert longest <= 24
    loop.cancel(long)
    clients.manners.clear()
    loop.drain()
    assert long.generated_tokens == alone(long.initial_tokens, 320)[: long.generated_len()]
