"""``bench strategies``: each decoding strategy beside transformers, or beside greedy decoding."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.table import Table

from asyncgen_apps.bench.cases import GREEDY, GROUNDED_GREEDY, Case
from asyncgen_apps.bench.jobs import Job
from asyncgen_apps.bench.models import drafted_checkpoint
from asyncgen_apps.bench.report import Report, busy_note, open_frame
from asyncgen_apps.bench.settings import StrategiesBench
from asyncgen_apps.bench.workers import BenchError, EndedError, started

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.jobs import Run
    from asyncgen_apps.bench.models import DraftedCheckpoint
    from asyncgen_apps.bench.workers import Worker


SIDES = {
    "asyncgen": "asyncgen_apps.bench.sides.strategies:AsyncgenCaller",
    "transformers": "asyncgen_apps.bench.sides.strategies:TransformersCaller",
}
COLORS = {"float32": "#1f6feb", "bfloat16": "#8250df"}
WARM_UP_TOKENS = 12
DEMO = "demo"
WORDS = 12
"""Words that a grounded prompt asks to say again."""


@dataclass(slots=True)
class Comparison:
    """Runs of a strategy on one model.

    Attributes:
        model: Name of the model.
        dtype: Type of its weights.
        case: The strategy.
        runs: For each side its answers, in the order they were made.
        greedy: Our greedy answers to the same prompts.
        same: True if both sides gave the same tokens every time; ``None`` with one side.
        note: Reason that a side has no runs.
    """

    model: str
    dtype: str
    case: Case
    runs: dict[str, list[Run]] = field(default_factory=dict)
    greedy: list[Run] = field(default_factory=list)
    same: bool | None = None
    note: str | None = None

    def rate(self, side: str) -> float | None:
        """Median tokens per second of a side, if it ran."""
        runs = self.runs.get(side)
        return median(_rate(run) for run in runs) if runs else None

    @property
    def ratio(self) -> float | None:
        """Our rate as a multiple of transformers', run by run; the median."""
        return _ratio(self.runs.get("asyncgen", []), self.runs.get("transformers", []))

    @property
    def gain(self) -> float | None:
        """Our rate as a multiple of our greedy decoding's, run by run; the median."""
        return _ratio(self.runs.get("asyncgen", []), self.greedy)

    def data(self) -> dict[str, object]:
        """Return figures and runs for JSON."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "strategy": self.case.name,
            "parameters": dict(self.case.parameters),
            "tokens_per_second": {side: self.rate(side) for side in self.runs},
            "ratio": self.ratio,
            "ratio_to_greedy": self.gain,
            "same_tokens": self.same,
            "note": self.note,
            "runs": {
                side: [{"tokens": len(run.token_ids), **run.data()} for run in runs]
                for side, runs in self.runs.items()
            },
        }


def _rate(run: Run) -> float:
    """Return the tokens per second of a run."""
    return len(run.token_ids) / run.total


def _ratio(runs: list[Run], others: list[Run]) -> float | None:
    """Compare runs next to each other, which meet the same state of the machine."""
    pairs = list(zip(runs, others, strict=False))
    return median(_rate(run) / _rate(other) for run, other in pairs) if pairs else None


@dataclass(slots=True)
class StrategiesReport(Report[StrategiesBench]):
    """Comparisons of all strategies.

    Attributes:
        bench: Settings that were measured with.
        comparisons: One for each strategy and data type.
    """

    kind = "strategies"
    bench: StrategiesBench
    comparisons: list[Comparison] = field(default_factory=list)

    def measure(self, progress: Callable[[str], None]) -> None:
        """Run plain strategies on the checkpoint, and grounded ones on the bundled model."""
        bench = self.bench
        for dtype in bench.dtypes:
            plain = [case for case in bench.cases if not case.is_grounded]
            grounded = [case for case in bench.cases if case.is_grounded]
            for name, shape, model, cases in (
                (bench.name, bench.shape, bench.model, plain),
                (DEMO, DEMO, None, grounded),
            ):
                if cases:
                    progress(f"{name}, {dtype}: loading")
                    with drafted_checkpoint(shape, model, dtype) as found:
                        some = [Comparison(name, dtype, case) for case in cases]
                        self.comparisons += some
                        _measure(bench, found, some, progress)

    def results(self) -> object:
        """Return figures and runs, for JSON."""
        return [comparison.data() for comparison in self.comparisons]

    def table(self) -> Table:
        """Lay the medians out."""
        bench = self.bench
        title = (
            f"{bench.name}, {bench.threads_text}, {bench.prompt_tokens} + "
            f"{bench.new_tokens} tokens, medians of {bench.runs} runs, tokens/s"
        )
        table = Table("dtype", title=title, caption=self._caption())
        table.add_column("strategy", no_wrap=True)
        for column in ("asyncgen", "transformers", "ratio", "to greedy", "same"):
            table.add_column(column, justify="right")
        for one in self.comparisons:
            table.add_row(one.dtype, one.case.name, *_cells(one))
            if one is self.comparisons[-1] or one.case is bench.cases[-1]:
                table.add_section()
        return table

    def _caption(self) -> str | None:
        """Name what was left out, and warn if the machine was busy."""
        lines = [
            f"{one.case.name}, {one.dtype}: {one.note}" for one in self.comparisons if one.note
        ]
        runs = [run for one in self.comparisons for side in one.runs.values() for run in side]
        return "\n".join([*lines, *busy_note(runs)]) or None

    def draw(self, figure: Figure) -> None:
        """Draw the ratios as bars, one group for each strategy that has one."""
        shown = [(one, _shown(one)) for one in self.comparisons]
        rows = [(_label(one), one.dtype, ratio) for one, ratio in shown if ratio is not None]
        names = list(dict.fromkeys(name for name, _, _ in rows))
        dtypes = list(dict.fromkeys(dtype for _, dtype, _ in rows))
        figure.set_size_inches(8, 1.5 + 0.22 * max(1, len(rows)))
        axes = figure.subplots()
        height = 0.8 / max(1, len(dtypes))
        for index, dtype in enumerate(dtypes):
            found = {name: ratio for name, kind, ratio in rows if kind == dtype}
            places = [names.index(name) + index * height for name in found]
            bars = axes.barh(
                places, list(found.values()), height * 0.92, color=COLORS.get(dtype), label=dtype
            )
            axes.bar_label(bars, labels=[f"{ratio:.2f} ×" for ratio in found.values()], padding=2)
        middle = height * (len(dtypes) - 1) / 2
        axes.set_yticks([place + middle for place in range(len(names))], names)
        axes.invert_yaxis()
        axes.axvline(1, color="#57606a", linewidth=1)
        axes.set_xlabel("times as fast as transformers (*: as our greedy decoding)")
        axes.set_title(f"Strategies on {self.bench.name}, {self.bench.threads_text}")
        open_frame(axes)
        axes.margins(x=0.12)
        if dtypes:
            axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _shown(one: Comparison) -> float | None:
    """Return the height of a bar: the ratio to transformers, else to our greedy decoding."""
    return one.ratio if one.case.theirs else one.gain


def _label(one: Comparison) -> str:
    """Name a bar."""
    return one.case.name if one.case.theirs else f"{one.case.name} *"


def _cells(one: Comparison) -> tuple[str, ...]:
    """Lay one comparison out."""
    rates = [one.rate(side) for side in SIDES]
    if rates[0] is None:
        return ("skipped",)
    absent = "skipped" if one.case.theirs else "none"
    ours, theirs = (absent if rate is None else f"{rate:.1f}" for rate in rates)
    ratio = f"[bold]{one.ratio:.2f} ×" if one.ratio else ""
    gain = f"{one.gain:.2f} ×" if one.gain else ""
    same = {None: "", True: "yes", False: "no"}[one.same]
    return ours, theirs, ratio, gain, same


def _measure(
    bench: StrategiesBench,
    found: DraftedCheckpoint,
    comparisons: list[Comparison],
    progress: Callable[[str], None],
) -> None:
    """Run all strategies of one checkpoint; greedy decoding comes first."""
    folders = {
        "folder": str(found.target.folder),
        "draft": str(found.draft) if found.draft else None,
        "foreign": str(found.foreign) if found.foreign else None,
    }
    with started(SIDES) as workers:
        for worker in workers.values():
            worker.call("load", dtype=comparisons[0].dtype, **folders)
        for one in comparisons:
            case = one.case
            progress(f"{one.dtype}: {case.name}")
            if case.draft is not None and getattr(found, case.draft) is None:
                one.note = "needs a small model that drafts; made checkpoints have one"
                continue
            _run(bench, found, one, workers)
            greedy = next(
                (each for each in comparisons if each.case in (GREEDY, GROUNDED_GREEDY)), None
            )
            one.greedy = greedy.runs.get("asyncgen", []) if greedy is not None else []


def _run(
    bench: StrategiesBench, found: DraftedCheckpoint, one: Comparison, workers: dict[str, Worker]
) -> None:
    """Run the sides of one strategy in turn: A, B, A, B."""
    case = one.case
    sides = [side for side in SIDES if case.theirs or side == "asyncgen"]
    for side in list(sides):
        try:
            _call(workers[side], found, case, WARM_UP_TOKENS, bench.prompt_tokens, seed=0)
        except EndedError:
            raise
        except BenchError as error:
            one.note = str(error)
            sides.remove(side)
    if "asyncgen" not in sides:
        return
    one.runs = {side: [] for side in sides}
    for number in range(bench.runs):
        for side in sides:
            one.runs[side].append(
                _call(workers[side], found, case, bench.new_tokens, bench.prompt_tokens, number + 1)
            )
    if len(sides) == 2:
        ours, theirs = ([list(run.token_ids) for run in runs] for runs in one.runs.values())
        one.same = ours == theirs


def _call(
    worker: Worker,
    found: DraftedCheckpoint,
    case: Case,
    new_tokens: int,
    prompt_tokens: int,
    seed: int,
) -> Run:
    """Generate one answer; both sides get the same prompt in the same round."""
    target = found.target
    arguments = {"do_sample": False, "max_new_tokens": new_tokens, **case.parameters}
    if case.is_grounded:
        prompt = _grounded(target.folder, seed)
    else:
        prompt = target.prompt(prompt_tokens, seed)
        arguments |= target.floor(new_tokens)
    job = Job([prompt], arguments)
    return worker.run(job, seed=seed, draft=case.draft, wants_tokenizer=case.wants_tokenizer)


def _grounded(folder: Path, seed: int) -> list[int]:
    """Ask to say some words again, which the bundled model has learnt."""
    from asyncgen import load_tokenizer
    from asyncgen_apps.demo_model.world import OBJECTS

    words = random.Random(seed).sample(sorted(OBJECTS), WORDS)
    messages = [{"role": "user", "content": f"Repeat after me: {', '.join(words)}"}]
    tokenizer = load_tokenizer(folder)
    ids: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return list(ids["input_ids"] if hasattr(ids, "keys") else ids)
