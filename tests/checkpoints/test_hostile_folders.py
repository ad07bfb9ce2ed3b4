"""Beside a hostile template, tokenizer or decoder a neighbour's stream goes on; closing ends it.

The law, on a quiet machine of two cores: a neighbour waits for at most 250 ms, ``close()`` returns
within 2 s, and no thread and no process is left. The soak holds it over all folders; what runs in
the gate has bounds that a busy machine keeps as well.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer as Backend

from asyncgen import LLM, load_tokenizer
from asyncgen.checkpoints.tokenizer_sizes import MOST_NODES, MOST_PARTS
from asyncgen.errors import (
    ChatTemplateError,
    EngineClosedError,
    InvalidRequestError,
    ModelLoadError,
)
from asyncgen.runtime.wanted import asking
from asyncgen.text import template_turns, tokenizer_files
from asyncgen.text.chat_template import render_chat
from asyncgen.text.template_turns import Turn
from asyncgen.text.tokenizer_work import MOST_PAIRS, check_runs
from tests.cases import for_each
from tests.checkpoints.hostile_folders import DOORS, FOLDERS, SECRET, TEMPLATES, make

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

LAW, CLOSE, OPEN, WIDE = 0.25, 2.0, 10.0, 2.0
QUICK = ("template: slow calls", "template: translate", "digits of SuperBPE", "words of 128")


def grow_bpe(model: dict[str, Any]) -> None:
    tokens, merges = model["vocab"], model["merges"]
    letters = [token for token in tokens if len(token) == 1]
    first = max(tokens.values()) + 1
    for left, right in itertools.product(list(tokens), letters):
        if len(tokens) + len(merges) > MOST_PARTS - 2:
            break
        if tokens.setdefault(left + right, first) == first:
            first += 1
            merges.append([left, right])


def grow_pieces(model: dict[str, Any]) -> None:
    pieces = [["<unk>", 0.0], *([token, -1.0] for token in model["vocab"])]
    pieces += [[f"{number:06x}{'x' * 9}", -1.5] for number in range(MOST_NODES // 11)]
    model.clear()
    model.update(type="Unigram", unk_id=0, vocab=pieces, byte_fallback=False)


GROWN = {"BPE": grow_bpe, "Unigram": grow_pieces}
MESSAGES = [{"role": "user", "content": "hello"}]


def look(name: str, door: str, place: Path, seconds: float) -> dict[str, Any]:
    """Look at one folder in a process of its own; it may take two minutes."""
    place.mkdir()
    command = [sys.executable, "-m", "tests.checkpoints.hostile_folders"]
    done = subprocess.run(
        [*command, str(place), name, door, str(seconds)],
        capture_output=True,
        timeout=120,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    seen: dict[str, Any] = json.loads(done.stdout)
    assert FOLDERS[name].refused in seen["refused"], seen
    assert bool(seen["refused"]) == bool(FOLDERS[name].refused), seen
    return seen


@pytest.mark.gate
@pytest.mark.parametrize("name", QUICK)
def test_the_quick_ones(name: str, tmp_path: Path) -> None:
    seen = look(name, "sync", tmp_path / "it", 0.7)
    assert seen["gap"] < WIDE + 10 * seen["idle"], seen
    assert seen["closed"] < 10, seen
    assert not seen["left"], seen


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("name", FOLDERS)
def test_each(name: str, door: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = []  # the least of three: what the machine does beside strikes one of them
    for number in range(3):
        found.append(look(name, door, tmp_path / str(number), 2.0))
        if found[-1]["gap"] <= LAW and found[-1]["closed"] <= CLOSE:
            break
    with capsys.disabled():
        figures = [(round(1000 * one["gap"]), round(1000 * one["closed"])) for one in found]
        print(f"\n{name}, {door}: gaps and closes of {figures} ms", end="")  # noqa: T201
    assert min(one["gap"] for one in found) <= LAW
    assert min(one["closed"] for one in found) <= CLOSE
    assert min(one["opened"] for one in found) <= OPEN
    assert not found[-1]["left"]


@for_each("name", [name for name, one in FOLDERS.items() if one.refused])
def test_what_is_refused_is_refused_by_name(
    name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = make(name, tmp_path_factory.mktemp("folder"), weights=False)
    with pytest.raises(ModelLoadError) as caught:
        load_tokenizer(folder)
    assert str(caught.value).startswith(str(folder / "tokenizer.json"))
    assert FOLDERS[name].refused in str(caught.value)
    assert len(str(caught.value)) < 1000


@pytest.mark.gate
@pytest.mark.parametrize("name", GROWN)
def test_closing_amid_the_largest_tokenizers(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, arrived = make("template: loops", tmp_path), threading.Event()
    file = folder / "tokenizer.json"
    state = json.loads(file.read_text())
    GROWN[name](state["model"])
    file.write_text(json.dumps(state))
    times: list[float] = []

    class Told:
        @staticmethod
        def from_str(text: str) -> Any:
            arrived.set()
            times.append(time.monotonic())
            backend = Backend.from_str(text)
            times.append(time.monotonic())
            return backend

    monkeypatch.setattr(tokenizer_files, "Backend", Told)
    llm = LLM(folder, device="cpu", progress=False)

    def start() -> None:
        with pytest.raises(EngineClosedError):
            llm.start()

    starting = threading.Thread(target=start)
    starting.start()
    assert arrived.wait(60)
    llm.close()
    closed = time.monotonic() - times[0]
    starting.join(60)
    print(f"{name}: built in {times[1] - times[0]:.2f} s, closed in {closed:.2f} s")  # noqa: T201
    assert closed < 5 * CLOSE
    assert not [one for one in threading.enumerate() if one.name.startswith("asyncgen")]


def test_a_template_that_works_long_rests_between_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    rest = Turn.rest

    def counted(turn: Turn) -> None:
        rests.append(time.perf_counter())
        rest(turn)

    monkeypatch.setattr(Turn, "rest", counted)
    render_chat("{{ messages[0].content }}", MESSAGES)
    assert not rests
    render_chat("{% for i in range(99999) %}{% set x = i %}{% endfor %}", MESSAGES)
    assert len(rests) > 5


def test_what_has_worked_for_a_turn_sleeps_until_its_place(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept, others = [100.0], [0.0], [0.001]

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        now[0] += seconds or others[0]

    monkeypatch.setattr(template_turns, "_free_at", [0.0])
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", sleep)
    turn = Turn()
    assert slept == [0.0]
    now[0] += 0.03  # one call
    turn.rest()
    assert slept[-1] == pytest.approx(0.03 - others[0])
    now[0] += 5.0  # nobody waits that long for the next one
    turn.rest()
    assert slept[-1] == pytest.approx(0.05 - others[0])
    other = Turn()  # another thread's waits for the turn that has begun
    assert slept[-1] == pytest.approx(template_turns.TURN)
    other.end()
    slept.clear()
    last = Turn()
    assert sum(slept) < 2 * template_turns.TURN
    now[0] += 1.0
    others[0], slept[:] = 1e-6, []  # no thread waits for the interpreter
    last.rest()
    now[0] += 1.0
    last.rest()
    assert slept == [0, 0]


def test_a_template_that_nobody_waits_for_ends() -> None:
    refused = pytest.raises(ChatTemplateError, match="nobody waits for it any more")
    with asking(lambda: False), refused:
        render_chat(TEMPLATES["loops"], MESSAGES)


REFUSED = "in one call|form of 2000000 characters|may not call here|a width of more than"


@for_each("name", ["translate", "dates", "tojson of large integers", "format", "wordwrap"])
def test_one_call_that_would_take_long_is_refused(name: str) -> None:
    with pytest.raises(ChatTemplateError, match=REFUSED) as caught:
        render_chat(TEMPLATES[name], [{"role": "user", "content": SECRET}])
    assert SECRET not in str(caught.value)


def test_runs_of_digits_and_spaces_are_measured() -> None:
    most = int(MOST_PAIRS**0.5)
    check_runs(["1" * (most - 99) + "a" + " " * 3000], 1)
    check_runs(["1a" * most], 20)
    check_runs(["1" * most * 2], 0)
    for text in ("1" * (most + 9), "a" * 65_530 + " " * (most + 9), ("1" * 9999 + "a") * 99):
        with pytest.raises(InvalidRequestError, match=r"a text of \d+ characters.*the tokenizer"):
            check_runs([text], 1)
    with pytest.raises(InvalidRequestError, match="the longest of 20000: at most 14142 in one run"):
        check_runs(["a" + "\u0661" * 20_000], 20)


def test_short_templates_of_many_threads_are_all_rendered() -> None:
    ended: list[str] = []

    def render() -> None:
        ended.append(render_chat("{{ messages[0].content }}", MESSAGES))

    threads = [threading.Thread(target=render) for _ in range(50)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert ended == ["hello"] * 50
