"""``bench strategies``: every decoding strategy beside transformers, or beside our greedy decoding.

Interleaves the runs of both sides and turns them into figures; measures nothing itself.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

from rich.table import Table

from asyncgen_apps.bench.cases import CASES, GREEDY, GROUNDED_GREEDY, Case
from asyncgen_apps.bench.figures import median
from asyncgen_apps.bench.models import drafted_checkpoint
from asyncgen_apps.bench.neighbours import CpuBackoff
from asyncgen_apps.bench.workers import BenchError, Worker

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from matplotlib.figure import Figure

    from asyncgen_apps.bench.models import Drafted


SIDES = {
    "asyncgen": "asyncgen_apps.bench.strategies_sides:AsyncgenCaller",
    "transformers": "asyncgen_apps.bench.strategies_sides:TransformersCaller",
}
COLORS = {"float32": "#1f6feb", "bfloat16": "#8250df"}
WARM_UP_TOKENS = 12
DISTURBING = 0.15
"""Cores; a desktop at rest stays below."""
DEMO = "demo"
WORDS = 12
"""Words that a grounded prompt asks to say again."""


@dataclass(frozen=True, slots=True)
class StrategiesBench:
    """What to measure.

    Attributes:
        shape: Name of a made checkpoint, or ``demo``.
        model: A folder instead.
        dtypes: Types of the weights, all strategies at each.
        strategies: Names of the strategies; empty for all.
        new_tokens: Tokens of each answer; a grounded answer may end before.
        prompt_tokens: Tokens of each prompt.
        runs: Measured runs of each strategy and side.
        threads: Compute threads of each side, for the record; the environment sets them.
    """

    shape: str
    model: Path | None
    dtypes: tuple[str, ...]
    strategies: tuple[str, ...]
    new_tokens: int
    prompt_tokens: int
    runs: int
    threads: int

    @property
    def cases(self) -> tuple[Case, ...]:
        """The strategies that were asked for, and greedy decoding, which they are compared with."""
        chosen = [case for case in CASES if not self.strategies or case.name in self.strategies]
        for greedy in (GREEDY, GROUNDED_GREEDY):
            if any(case.is_grounded == greedy.is_grounded for case in chosen) and (
                greedy not in chosen
            ):
                chosen.insert(0, greedy)
        return tuple(chosen)


@dataclass(frozen=True, slots=True)
class Answer:
    """One call.

    Attributes:
        total: Seconds.
        tokens: New tokens.
        others: Cores that other processes used meanwhile; ``None`` if not known.
    """

    total: float
    tokens: int
    others: float | None = None

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.total


@dataclass(slots=True)
class Comparison:
    """A strategy on one model.

    Attributes:
        model: Name of the model.
        dtype: Type of its weights.
        case: The strategy.
        runs: For each side its answers, in the order they were made.
        greedy: Our greedy answers to the same prompts.
        same: Whether both sides gave the same tokens every time; ``None`` with one side.
        note: Why a side has no runs.
    """

    model: str
    dtype: str
    case: Case
    runs: dict[str, list[Answer]] = field(default_factory=dict)
    greedy: list[Answer] = field(default_factory=list)
    same: bool | None = None
    note: str | None = None

    def rate(self, side: str) -> float | None:
        """Median tokens per second of a side, if it ran."""
        runs = self.runs.get(side)
        return median(run.rate for run in runs) if runs else None

    @property
    def ratio(self) -> float | None:
        """How many times as fast as transformers ours is, run by run; the median."""
        return _ratio(self.runs.get("asyncgen", []), self.runs.get("transformers", []))

    @property
    def gain(self) -> float | None:
        """How many times as fast as our greedy decoding ours is, run by run; the median."""
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
            "runs": {side: [asdict(run) for run in runs] for side, runs in self.runs.items()},
        }


def _ratio(runs: list[Answer], others: list[Answer]) -> float | None:
    """Compare neighbours, which meet the same state of the machine."""
    pairs = list(zip(runs, others, strict=False))
    return median(run.rate / other.rate for run, other in pairs) if pairs else None


@dataclass(slots=True)
class StrategiesReport:
    """The comparisons of one benchmark.

    Attributes:
        bench: What was measured.
        comparisons: One for each strategy and data type.
    """

    bench: StrategiesBench
    comparisons: list[Comparison] = field(default_factory=list)

    @classmethod
    def of(
        cls, bench: StrategiesBench, progress: Callable[[str], None] = lambda text: None
    ) -> Self:
        """Run a benchmark.

        Args:
            bench: What to measure.
            progress: Told in a few words what comes next.

        Raises:
            BenchError: A side cannot load the model, or its process ended.
        """
        report = cls(bench)
        for dtype in bench.dtypes:
            plain = [case for case in bench.cases if not case.is_grounded]
            grounded = [case for case in bench.cases if case.is_grounded]
            for shape, model, cases in (
                (bench.shape, bench.model, plain),
                (DEMO, None, grounded),
            ):
                if cases:
                    progress(f"{_name(shape, model)}, {dtype}: loading")
                    with drafted_checkpoint(shape, model, dtype) as found:
                        measured = _measure(bench, found, dtype, cases, progress)
                        for one in measured:
                            one.model = _name(shape, model)
                            report.comparisons.append(one)
        return report

    @property
    def kind(self) -> str:
        """Name of the benchmark."""
        return "strategies"

    def settings(self) -> dict[str, object]:
        """Return what was measured, for JSON."""
        return {**asdict(self.bench), "model": str(self.bench.model) if self.bench.model else None}

    def results(self) -> object:
        """Return figures and runs, for JSON."""
        return [comparison.data() for comparison in self.comparisons]

    def table(self) -> Table:
        """Lay the medians out."""
        bench = self.bench
        title = (
            f"{_name(bench.shape, bench.model)}, {_threads(bench)}, {bench.prompt_tokens} + "
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
        """Say what was left out, and if the machine was too busy for the figures to mean much."""
        lines = [
            f"{one.case.name}, {one.dtype}: {one.note}" for one in self.comparisons if one.note
        ]
        runs = [run for one in self.comparisons for side in one.runs.values() for run in side]
        busy = [run for run in runs if run.others is not None and run.others > DISTURBING]
        if busy:
            lines.append(f"{len(busy)} of {len(runs)} runs shared the cores with other processes")
        return "\n".join(lines) or None

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
        axes.set_title(
            f"Strategies on {_name(self.bench.shape, self.bench.model)}, {_threads(self.bench)}"
        )
        axes.spines[["top", "right"]].set_visible(False)
        axes.margins(x=0.12)
        if dtypes:
            axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1, 1))


def _shown(one: Comparison) -> float | None:
    """Return what a bar shows: the ratio to transformers, else to our greedy decoding."""
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


def _threads(bench: StrategiesBench) -> str:
    """Count the compute threads in words."""
    return f"{bench.threads} thread" + ("" if bench.threads == 1 else "s")


def _name(shape: str, model: Path | None) -> str:
    """Name a checkpoint."""
    return shape if model is None else model.name


def _measure(
    bench: StrategiesBench,
    found: Drafted,
    dtype: str,
    cases: list[Case],
    progress: Callable[[str], None],
) -> list[Comparison]:
    """Run all strategies on one checkpoint."""
    folders = {
        "folder": str(found.target.folder),
        "draft": str(found.draft) if found.draft else None,
        "foreign": str(found.foreign) if found.foreign else None,
    }
    measured: list[Comparison] = []
    with ExitStack() as stack:
        workers = {side: stack.enter_context(Worker(name)) for side, name in SIDES.items()}
        for worker in workers.values():
            worker.call("load", dtype=dtype, **folders)
        for case in cases:
            progress(f"{dtype}: {case.name}")
            one = Comparison("", dtype, case)
            measured.append(one)
            if case.draft is not None and getattr(found, case.draft) is None:
                one.note = "needs a small model that drafts; made checkpoints have one"
                continue
            _run(bench, found, one, workers)
            same_prompts = [other for other in measured if other.case in (GREEDY, GROUNDED_GREEDY)]
            one.greedy = same_prompts[0].runs.get("asyncgen", []) if same_prompts else []
    return measured


def _run(
    bench: StrategiesBench, found: Drafted, one: Comparison, workers: dict[str, Worker]
) -> None:
    """Run the sides of one strategy in turn: A, B, A, B."""
    case = one.case
    sides = [side for side in SIDES if case.theirs or side == "asyncgen"]
    for side in list(sides):
        try:
            _call(workers[side], found, case, WARM_UP_TOKENS, bench.prompt_tokens, seed=0)
        except BenchError as error:
            if "the process ended" in str(error):
                raise
            one.note = str(error)
            sides.remove(side)
    if "asyncgen" not in sides:
        return
    token_ids: dict[str, list[list[int]]] = {side: [] for side in sides}
    one.runs = {side: [] for side in sides}
    for number in range(bench.runs):
        for side in sides:
            neighbours = CpuBackoff(workers[side].pid)
            got = _call(
                workers[side], found, case, bench.new_tokens, bench.prompt_tokens, seed=number + 1
            )
            fresh = Answer(got["total"], len(got["token_ids"]), neighbours.cores())
            one.runs[side].append(fresh)
            token_ids[side].append(got["token_ids"])
    if len(sides) == 2:
        one.same = token_ids["asyncgen"] == token_ids["transformers"]


def _call(
    worker: Worker, found: Drafted, case: Case, new_tokens: int, prompt_tokens: int, seed: int
) -> dict[str, Any]:
    """Generate one answer; both sides get the same prompt in the same round."""
    target = found.target
    arguments = {"do_sample": False, "max_new_tokens": new_tokens, **case.parameters}
    if case.is_grounded:
        prompt = _grounded(target.folder, seed)
    else:
        prompt = target.prompt(prompt_tokens, seed)
        arguments |= target.floor(new_tokens)
    return worker.call(
        "run",
        prompt=prompt,
        seed=seed,
        arguments=arguments,
        draft=case.draft,
        wants_tokenizer=case.wants_tokenizer,
    )


def _grounded(folder: Path, seed: int) -> list[int]:
    """Ask to say some words again; the bundled model has learnt to."""
    from asyncgen import load_tokenizer
    from asyncgen_apps.demo_model.world import OBJECTS

    words = random.Random(seed).sample(sorted(OBJECTS), WORDS)
    messages = [{"role": "user", "content": f"Repeat after me: {', '.join(words)}"}]
    tokenizer = load_tokenizer(folder)
    ids: Any = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
    return list(ids["input_ids"] if hasattr(ids, "keys") else ids)
