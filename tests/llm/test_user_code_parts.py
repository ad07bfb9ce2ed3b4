"""Parts of a user that an engine is made of: what they leave behind changes no tokens.

A model, a scheduler and a report of progress see all requests, so each has an engine of its own.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import asyncgen
from asyncgen.engine.scheduling.scheduler import FIFOScheduler
from asyncgen.errors import EngineDiedError, EngineReentryError
from asyncgen.generation.strategies.constraints import PhrasalConstraint
from tests.cases import for_each
from tests.doubles.models import PATIENCE, byte_tokenizer
from tests.doubles.written_models import make
from tests.left_behind import LEFT, seen

if TYPE_CHECKING:
    from collections.abc import Callable

    from asyncgen.engine.scheduling.state import ScheduledRow
    from tests.left_behind import Leave

ROWS = ("inference mode", "default device", "function mode", "precision", "dispatch mode")
OF_MODELS = ("inference mode", "subnormals", "determinism", "saved tensors")
"""What spoils nothing within the call that leaves it: a call of a written model is one request."""
PROMPT = "Once upon a time there was"


class Culprit:
    """Does what it is told to at each call, and counts them."""

    def __init__(self) -> None:
        self.leave: Leave = LEFT["nothing"]
        self.calls = 0
        self.states: dict[str, list[Any]] = {}

    def __call__(self, *args: object) -> None:
        self.calls += 1
        self.leave()


def with_scheduler(culprit: Culprit) -> tuple[asyncgen.LLM, dict[str, Any]]:
    class Scheduler(FIFOScheduler):
        def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
            rows = super().schedule_batch(token_budget, cache_budget)
            culprit()
            return rows

        def computed(self, rows: Any) -> None:
            super().computed(rows)
            culprit()

    return asyncgen.LLM("demo", num_threads=1, scheduler=Scheduler), {}


def with_progress(culprit: Culprit) -> tuple[asyncgen.LLM, dict[str, Any]]:
    return asyncgen.LLM("demo", num_threads=1, progress=culprit, prefill_chunk_size=2), {}


def with_constraint(culprit: Culprit) -> tuple[asyncgen.LLM, dict[str, Any]]:
    class Constraint(PhrasalConstraint):
        def update(self, token_id: int) -> tuple[bool, bool, bool]:
            found = super().update(token_id)
            culprit()
            return found

        def advance(self) -> int | None:
            culprit()
            return super().advance()

        def copy(self, stateful: bool = False) -> Any:
            made = Constraint(self.token_ids)
            if stateful:
                made.fulfilled_idx, made.completed = self.fulfilled_idx, self.completed
            return made

    given = {"constraints": [Constraint([11, 12])], "num_beams": 3}
    return asyncgen.LLM("demo", num_threads=1), given


def with_written_model(culprit: Culprit) -> tuple[asyncgen.LLM, dict[str, Any]]:
    model = make(asyncgen, "plain")
    logits = model.logits

    def spoil(*args: Any) -> Any:
        found = logits(*args)
        culprit()
        return found

    model.logits = spoil
    return asyncgen.LLM(model, tokenizer=byte_tokenizer()), {}


def with_foreign_model(culprit: Culprit) -> tuple[asyncgen.LLM, dict[str, Any]]:
    class Foreign:
        """Decodes with a model of its own."""

        def __init__(self) -> None:
            self.inner = make(asyncgen, "plain")
            self.config = self.inner.config
            self.generation_config = self.inner.generation_config
            self.device = self.inner.device

        def generate(self, **given: Any) -> Any:
            found = self.inner.generate(**given)
            culprit()
            return found

    return asyncgen.LLM(Foreign(), tokenizer=byte_tokenizer()), {}


def with_tokenizer(culprit: Culprit) -> tuple[asyncgen.LLM, dict[str, Any]]:
    class Mine:
        """Looks at the state, and leaves another, on the threads that prepare and decode."""

        def __init__(self) -> None:
            self.inner = asyncgen.load_tokenizer("demo")

        def encode_ids(self, text: str, add_special_tokens: bool = True) -> list[int]:
            return self.watched(self.inner.encode_ids, text, add_special_tokens)

        def decode(self, ids: list[int], **given: Any) -> str:
            return self.watched(self.inner.decode, ids, **given)

        def watched(self, function: Any, *args: Any, **given: Any) -> Any:
            culprit.states.setdefault(threading.current_thread().name[:16], []).append(seen())
            found = function(*args, **given)
            culprit()
            return found

    return asyncgen.LLM("demo", num_threads=1, tokenizer=Mine()), {}


PARTS = (
    with_scheduler,
    with_tokenizer,
    with_progress,
    with_constraint,
    with_written_model,
    with_foreign_model,
)


def demand(make_one: Callable[[Culprit], Any], rows: tuple[str, ...]) -> None:
    """Compare the tokens and the state that is seen with those beside a part that does nothing."""
    culprit = Culprit()
    states: list[Any] = []

    def look(input_ids: Any, scores: Any) -> Any:
        states.append(seen())
        return scores

    llm, given = make_one(culprit)
    is_whole = make_one in (with_written_model, with_foreign_model)
    prompt: Any = [5, 6, 7] if is_whole else PROMPT

    def tokens() -> list[Any]:
        asked = [
            {"do_sample": False, **given},
            {"do_sample": False, "logits_processor": [look]},
            {"temperature": 0.9, "seed": 3},
            {"num_beams": 2, "seed": 5},
        ]
        return [llm.generate(prompt, max_new_tokens=6, **each).token_ids for each in asked]

    with llm:
        assert make_one is not with_tokenizer or type(llm.tokenizer).__name__ == "Mine"
        right, clean = tokens(), states[0]
        for row in rows:
            culprit.leave, culprit.calls = LEFT[row], 0
            states.clear()
            assert tokens() == right, row
            assert culprit.calls, row
            assert is_whole or set(states) == {clean}, row
        culprit.leave = LEFT["nothing"]
        assert tokens() == right
    assert all(len(set(found)) == 1 for found in culprit.states.values())
    assert make_one is not with_tokenizer or len(culprit.states) == 2


def test_what_a_tokenizer_leaves_behind_reaches_no_request() -> None:
    demand(with_tokenizer, ROWS[:1])


def test_what_a_scheduler_leaves_behind_reaches_no_request() -> None:
    demand(with_scheduler, ROWS[:2])


def test_what_a_hook_of_the_model_leaves_behind_does_not_open_the_engine_with_it() -> None:
    states: list[Any] = []

    def look(input_ids: Any, scores: Any) -> Any:
        states.append(seen())
        return scores

    for row in ("nothing", "inference mode", "function mode"):
        model, culprit = asyncgen.load_model("demo"), Culprit()
        culprit.leave = LEFT[row]
        model.register_forward_hook(culprit)
        tokenizer = asyncgen.load_tokenizer("demo")
        with asyncgen.LLM(model, tokenizer=tokenizer, num_threads=1) as llm:
            llm.generate(PROMPT, max_new_tokens=2, logits_processor=[look])
        assert culprit.calls, row
    assert len(set(states)) == 1


@pytest.mark.gate
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.__name__)
def test_what_a_part_leaves_behind_reaches_no_request(part: Any) -> None:
    demand(part, OF_MODELS if part is with_written_model else ROWS)


@pytest.mark.gate
@for_each("part", PARTS, ids=lambda part: part.__name__)
def test_part_that_asks_its_engine_is_refused(part: Any) -> None:
    culprit, asked = Culprit(), threading.Event()
    llm, given = part(culprit)
    prompt: Any = [5, 6, 7] if part in (with_written_model, with_foreign_model) else PROMPT

    def ask() -> None:
        with suppress(asyncgen.InvalidRequestError):
            try:
                llm.generate(prompt, max_new_tokens=1)
            except EngineReentryError:
                asked.set()

    with llm:
        right = llm.generate(prompt, max_new_tokens=4, do_sample=False, **given).token_ids
        culprit.leave = ask
        again = llm.generate(prompt, max_new_tokens=4, do_sample=False, **given).token_ids
        assert asked.wait(PATIENCE)  # the last token of a foreign model comes before its end
        assert again == right


def test_a_row_that_a_scheduler_returns_twice_is_not_computed_twice() -> None:
    class Twice(FIFOScheduler):
        def schedule_batch(self, token_budget: int, cache_budget: int) -> list[ScheduledRow]:
            return 2 * super().schedule_batch(token_budget, cache_budget)

    with asyncgen.LLM("demo", scheduler=Twice) as llm:
        with pytest.raises(EngineDiedError, match="returned a row twice"):
            llm.generate("Once", max_new_tokens=4)
