"""Define the rows of ``bench peers``: the requests of each workload, and the figures of a run."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING

from asyncgen_apps.bench.figures import gaps, percentile

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from asyncgen_apps.bench.models import Checkpoint
    from asyncgen_apps.bench.peers.programs.protocol import Answers, Request


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a run.

    Attributes:
        name: Name in the tables.
        unit: Unit of the number.
        is_time: True if less is better.
        digits: Decimals that the tables show.
    """

    name: str
    unit: str
    is_time: bool = False
    digits: int = 1


FIGURES = {
    "rate": Figure("all tokens, prompts included", "tokens/s"),
    "decode_rate": Figure("tokens after the first", "tokens/s"),
    "first_p50": Figure("first token, median", "ms", is_time=True, digits=0),
    "first_p99": Figure("first token, p99", "ms", is_time=True, digits=0),
    "gap_p99": Figure("gap between tokens, p99", "ms", is_time=True, digits=0),
    "quiet": Figure("alone", "tokens/s"),
    "busy": Figure("beside a busy process", "tokens/s"),
    "kept": Figure("kept beside a busy process, median", "%", digits=0),
    "least_kept": Figure("kept beside a busy process, worst run", "%", digits=0),
}


@dataclass(frozen=True, slots=True)
class Section:
    """Kind of rows.

    Attributes:
        title: Title of its tables.
        size: Unit of the size of a row.
        figures: Keys of :data:`FIGURES`; the first is the main one.
        shapes: Shapes if none are chosen.
    """

    title: str
    size: str
    figures: tuple[str, ...]
    shapes: tuple[str, ...] = ("135m",)


SECTIONS = {
    "one": Section(
        "One stream: a prompt of 32 tokens, 64 new", "stream", ("rate",), ("5m", "135m", "0.5b")
    ),
    "streams": Section(
        "Many streams at once: prompts of 16 to 64 tokens, 32 new each",
        "streams",
        ("rate", "first_p50", "first_p99"),
    ),
    "first": Section("First token of a prompt", "prompt tokens", ("first_p50",)),
    "turn": Section(
        "First token of a chat's next turn: 32 new tokens behind a prompt and its answer",
        "prompt tokens",
        ("first_p50",),
    ),
    "behind": Section(
        "Decoding behind a long text, 32 tokens", "tokens before", ("decode_rate", "gap_p99")
    ),
    "arrivals": Section(
        "Poisson arrivals, 2 a second: prompts of 64 to 1,024 tokens, answers of 16 to 256",
        "requests",
        ("rate", "first_p50", "first_p99", "gap_p99"),
    ),
    "neighbour": Section(
        "A process that spins on one core: prompts of 16 to 64 tokens, 32 new each",
        "streams",
        ("busy", "quiet", "kept", "least_kept"),
    ),
}
SIZES: dict[str, tuple[int, ...]] = {
    "one": (1,),
    "streams": (1, 4, 8, 16, 32, 64, 128),
    "first": (128, 512, 2048, 4096, 8192, 16384),
    "turn": (1024,),
    "behind": (2048, 8192),
    "arrivals": (40,),
    "neighbour": (1, 16),
}
"""Sizes of the rows of each section if none are chosen."""

ONE_PROMPT, ONE_NEW = 32, 64
PROMPTS, NEW = (16, 64), 32
"""Shortest and longest prompt of many streams, and the length of their answers."""
LONG_PROMPTS, LONG_NEW = (64, 1024), (16, 256)
"""Lengths for requests that arrive one by one."""
ARRIVALS_A_SECOND = 2.0
TURN = 32
"""Tokens of an answer, and of the user's next message."""


@dataclass(frozen=True, slots=True)
class Row:
    """Workload that every contender runs.

    Attributes:
        section: Key of :data:`SECTIONS`.
        shape: Name of a made checkpoint.
        dtype: Type to compute in.
        size: Size in the unit of the section: streams, or tokens of the prompt.
    """

    section: str
    shape: str
    dtype: str
    size: int

    @property
    def label(self) -> str:
        """Name of the row in its table."""
        where = f"{self.shape} {self.dtype}"
        return where if self.section == "one" else f"{where}, {self.size:,}"

    @property
    def is_turn(self) -> bool:
        """True if a turn that is not measured comes before."""
        return self.section == "turn"

    @property
    def is_beside_busy(self) -> bool:
        """True if it is measured again while another process spins."""
        return self.section == "neighbour"

    def requests(self, found: Checkpoint, seed: int) -> list[Request]:
        """Draw the requests of one run; other seeds give other prompts."""
        draw = random.Random(seed)
        if self.section in ("first", "behind", "turn"):
            new = {"first": 1, "behind": TURN + 1, "turn": TURN}[self.section]
            return [_request(found.prompt(self.size, seed), new)]
        if self.section == "one":
            return [_request(found.prompt(ONE_PROMPT, seed), ONE_NEW)]
        if self.section != "arrivals":
            return [_request(one, NEW) for one in found.prompts(self.size, PROMPTS, seed)]
        prompts = found.prompts(self.size, LONG_PROMPTS, seed)
        now, requests = 0.0, []
        for prompt in prompts:
            requests.append(_request(prompt, draw.randint(*LONG_NEW), now))
            now += draw.expovariate(ARRIVALS_A_SECOND)
        return requests

    def next_turn(
        self, found: Checkpoint, before: Request, answer: Sequence[int], seed: int
    ) -> Request:
        """Return the next request of a chat: the text so far, and new tokens of the user."""
        said = [*before["prompt"], *answer]
        return _request(said + found.prompt(TURN, seed), 1)

    @property
    def length(self) -> int:
        """Most tokens of one request, prompt and answer."""
        if self.section == "arrivals":
            return LONG_PROMPTS[1] + LONG_NEW[1]
        if self.section in ("streams", "neighbour"):
            return PROMPTS[1] + NEW
        return ONE_PROMPT + ONE_NEW if self.section == "one" else self.size + 3 * TURN

    @property
    def tokens(self) -> int:
        """Tokens of all requests together; the expected number for random arrivals."""
        if self.section == "arrivals":
            return self.size * (sum(LONG_PROMPTS) + sum(LONG_NEW)) // 2
        return self.streams * self.length

    @property
    def streams(self) -> int:
        """Most requests at a time."""
        return self.size if self.section in ("streams", "neighbour", "arrivals") else 1


def _request(prompt: list[int], new_tokens: int, arrival: float = 0.0) -> Request:
    return {"prompt": prompt, "new_tokens": new_tokens, "arrival": arrival}


def rows(
    sections: Iterable[str],
    shapes: Sequence[str],
    dtypes: Iterable[str],
    sizes: Mapping[str, Sequence[int]],
) -> list[Row]:
    """Return the rows to measure.

    Args:
        sections: Keys of :data:`SECTIONS`.
        shapes: Shapes of all sections; none: each section has its own.
        dtypes: Types to compute in.
        sizes: Sizes in place of :data:`SIZES`, for the sections that it names.
    """
    dtypes = tuple(dtypes)
    return [
        Row(section, shape, dtype, size)
        for section in sections
        for shape in shapes or SECTIONS[section].shapes
        for dtype in dtypes
        for size in sizes.get(section, SIZES[section])
    ]


class ShortAnswerError(ValueError):
    """Answer of a contender with another length than was asked for."""


def figures(requests: Sequence[Request], answers: Answers) -> dict[str, float]:
    """Work out the figures of one run.

    Args:
        requests: The requests.
        answers: Tokens and their times.

    Returns:
        Rates in tokens a second, the others in milliseconds; those that need two tokens of an
        answer are left out if every answer has one.

    Raises:
        ShortAnswerError: An answer has more or fewer tokens than were asked for.
    """
    times = answers["times"]
    for number, (request, one, ids) in enumerate(
        zip(requests, times, answers["tokens"], strict=True)
    ):
        if not len(one) == len(ids) == request["new_tokens"]:
            raise ShortAnswerError(
                f"answer {number} has {len(ids)} tokens at {len(one)} times, "
                f"{request['new_tokens']} were asked for"
            )
    count = sum(map(len, times))
    first = [one[0] - request["arrival"] for request, one in zip(requests, times, strict=True)]
    found = {
        "rate": count / max(one[-1] for one in times),
        "first_p50": 1000 * percentile(first, 0.5),
        "first_p99": 1000 * percentile(first, 0.99),
    }
    between = gaps(times)
    if between:
        found["gap_p99"] = 1000 * percentile(between, 0.99)
        spent = sum(one[-1] - one[0] for one in times)
        if spent > 0:
            found["decode_rate"] = len(between) / spent
    return found
