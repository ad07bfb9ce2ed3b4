"""The law of even shares in random mixes of clients: nine tenths of an even share, over 200 steps.

It is about steady demand: each client keeps requests waiting, and each of these takes less than an
even share of the memory. What a client holds is what its rows keep from others while a step
computes, in all groups of layers, the rows that end with that step included.
"""

from __future__ import annotations

import dataclasses
import random

import pytest

from asyncgen.engine.kv_cache.block_pool import BlockPool
from tests.doubles.clients import ORDERS, STEPS, Clients, Manner
from tests.doubles.paged import Loop


def seeds(few: int, many: int) -> list[object]:
    """Take a third of few for plain pytest, the others for the gate, and many for a soak."""
    plain = -(-few // 3)
    gate = [pytest.param(seed, marks=pytest.mark.gate) for seed in range(plain, few)]
    soak = [pytest.param(seed, marks=pytest.mark.soak) for seed in range(few, many)]
    return [*range(plain), *gate, *soak]


def mix(
    rng: random.Random, prompts: list[tuple[int, int]], news: list[tuple[int, int]]
) -> dict[str, Manner]:
    """Two to four clients that send prompts and ask for new tokens of such numbers."""
    manners = {}
    for number in range(rng.randint(2, 4)):
        together = rng.choice([1, 1, 4, 16])
        manners[str(number)] = Manner(
            prompt=rng.choice(prompts),
            new=rng.choice(news),
            n=together,
            queue=max(64, 2 * together),
            priority=rng.choice([0, 2**31, -5]),
            cancels=rng.choice([0, 0, 0.05]),
            alike=rng.random() < 0.2,
        )
    return manners


def require_even_pages(seed: int, pool: BlockPool) -> None:
    """Run a random mix in a pool that is too small for all of them."""
    rng = random.Random(seed)
    manners = mix(rng, [(8, 16), (20, 40), (40, 60), (4, 8)], [(20, 40), (60, 80), (8, 20)])
    scheduler = ORDERS[seed % 3](pool)
    scheduler.max_running = 1000
    clients = Clients(Loop(scheduler, token_budget=1000), manners, seed)
    for _ in range(STEPS):
        clients.step()
    clients.require_even(clients.pages)


@pytest.mark.parametrize("seed", seeds(6, 100))
def test_pages_are_shared(seed: int) -> None:
    require_even_pages(seed, BlockPool(160, 4))


@pytest.mark.gate
@pytest.mark.parametrize("seed", seeds(1, 40))
def test_many_pages_are_shared(seed: int) -> None:
    """Of short requests dozens end at each step here, and as many begin."""
    require_even_pages(seed, BlockPool(640, 4))


@pytest.mark.parametrize("seed", seeds(6, 100))
def test_pages_of_several_groups_are_shared(seed: int) -> None:
    """Of one memory: a page behind a window is given back, one before it counts like any other."""
    require_even_pages(seed, BlockPool(240, 4, windows=(None, 8)))


def require_even_prompt_tokens(seed: int, manners: dict[str, Manner], budget: int) -> None:
    """Run a mix with so many tokens in a step, and memory for everybody."""
    scheduler = ORDERS[seed % 3](BlockPool(10_000, 32))
    scheduler.max_running = budget
    clients = Clients(Loop(scheduler, token_budget=budget), manners, seed)
    for _ in range(STEPS):
        clients.step()
    clients.require_even(clients.prompt_tokens)


@pytest.mark.parametrize("seed", seeds(6, 100))
def test_prompt_tokens_are_shared(seed: int) -> None:
    rng = random.Random(seed)
    manners = mix(rng, [(30, 60), (100, 160), (40, 40), (60, 100), (16, 24)], [(1, 2), (1, 4)])
    require_even_prompt_tokens(seed, manners, rng.choice([16, 30, 64]))


@pytest.mark.parametrize("seed", seeds(4, 100))
def test_texts_that_are_embedded_share_prompt_tokens(seed: int) -> None:
    """With each other and with streams; those of some models run whole, longer ones in turn."""
    rng = random.Random(seed)
    manners = mix(rng, [(30, 60), (40, 40), (60, 100), (8, 24)], [(1, 1), (1, 1), (1, 4)])
    for name, manner in manners.items():
        is_whole = manner.new == (1, 1) and rng.random() < 0.5
        manners[name] = dataclasses.replace(manner, is_whole=is_whole)
    require_even_prompt_tokens(seed, manners, rng.choice([100, 160]))
