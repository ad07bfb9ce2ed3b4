"""Count the prompt tokens that snapshots of states save, by distance and memory.

No model runs: the scheduler serves three kinds of traffic, and its rows are counted. Run it with
``python -m tests.engine.scheduling.snapshot_figures``; the table is in the document on caches.
"""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING

from asyncgen.engine.kv_cache.block_pool import BlockPool
from asyncgen.engine.kv_cache.state_slots import SlotPool
from asyncgen.engine.scheduling.scheduler import FIFOScheduler
from asyncgen.engine.scheduling.state import RequestState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Exchange = tuple[list[int], list[int]]
    """A prompt and its answer."""

PAGE = 32
CHUNK = 256
ROWS = 8
FAR = 1 << 20


def text(draws: random.Random, length: int) -> list[int]:
    return [draws.randrange(1 << 20) for _ in range(length)]


def chats(draws: random.Random) -> Iterator[Exchange]:
    """40 conversations of five turns behind one of four system prompts, in any order."""
    systems = [text(draws, draws.randrange(300, 1500)) for _ in range(4)]
    open_ones = [draws.choice(systems) for _ in range(40)]
    turns = [5] * 40
    while any(turns):
        number = draws.choice([at for at, left in enumerate(turns) if left])
        turns[number] -= 1
        prompt = [*open_ones[number], *text(draws, draws.randrange(20, 250))]
        answer = text(draws, draws.randrange(50, 300))
        open_ones[number] = [*prompt, *answer]
        yield prompt, answer


def questions(draws: random.Random) -> Iterator[Exchange]:
    """Four questions to each of 20 documents."""
    asked = [text(draws, draws.randrange(2000, 8000)) for _ in range(20)] * 4
    draws.shuffle(asked)
    for document in asked:
        yield [*document, *text(draws, draws.randrange(20, 60))], text(draws, 60)


def edits(draws: random.Random) -> Iterator[Exchange]:
    """Six versions of each of 12 files, every one with a change somewhere in the one before."""
    files = [text(draws, draws.randrange(2000, 8000)) for _ in range(12)]
    order = [*range(12)] * 6
    draws.shuffle(order)
    for number in order:
        yield files[number], text(draws, 60)
        at = draws.randrange(len(files[number]))
        files[number] = [*files[number][:at], *text(draws, 5), *files[number][at + 5 :]]


def serve(
    traffic: Callable[[random.Random], Iterator[Exchange]],
    distance: int,
    snapshots: int | None,
) -> tuple[float, float]:
    """Serve it.

    Returns:
        Prompt tokens that are computed, of all; steps of a request that run its prompt.
    """
    draws = random.Random(3)
    slots = None if snapshots is None else SlotPool(ROWS, snapshots)
    scheduler = FIFOScheduler(
        BlockPool(1 << 18, PAGE, slots=slots, snapshot_pages=distance), safety_margin=0.0
    )
    scheduler.max_running = ROWS
    given = computed = chunks = requests = 0
    waiting = list(traffic(draws))
    live: dict[RequestState, list[int]] = {}
    while waiting or live:
        while waiting and len(live) < ROWS:
            prompt, answer = waiting.pop(0)
            state = RequestState(str(requests), prompt, max_new_tokens=len(answer))
            requests, given = requests + 1, given + len(prompt)
            scheduler.add_waiting_request(state)
            live[state] = answer
        rows = scheduler.schedule_batch(CHUNK + len(live), 1 << 40)
        scheduler.computed(rows)
        for row in rows:
            prompt_left = max(len(row.state.initial_tokens) - row.start, 0)
            computed += min(prompt_left, row.count)
            chunks += prompt_left > 0
            if not row.is_last:
                continue
            token = live[row.state][row.state.generated_len()]
            if row.state.update_and_check_completion(token):
                scheduler.finish_request(row.state.request_id)
                del live[row.state]
    return computed / given, chunks / requests


def main() -> None:
    kinds = (chats, questions, edits)
    write = sys.stdout.write
    write("| States beside | Tokens apart | Chats | Questions | Versions |\n")
    write("|---|---|---|---|---|\n")
    for snapshots in (None, 16, 64, 256):
        for distance in (FAR,) if snapshots is None else (1, 8, 32, FAR):
            found = [serve(kind, distance, snapshots) for kind in kinds]
            line = " | ".join(f"{part:.0%}, {steps:.1f}" for part, steps in found)
            apart = f"{distance * PAGE:,}" if distance < FAR else "none on the way"
            room = "pages alone" if snapshots is None else snapshots
            write(f"| {room} | {apart} | {line} |\n")


if __name__ == "__main__":
    main()
