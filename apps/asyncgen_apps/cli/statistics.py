"""Describe the statistics of an answer and of a session in one line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen_apps.engine.end_words import END_WORDS

if TYPE_CHECKING:
    from asyncgen import Completion
    from asyncgen_apps.cli.session import Totals


SEPARATOR = " · "


def seconds(value: float) -> str:
    """Render a duration with a unit that suits its size."""
    if value < 1:
        return f"{value * 1000:.0f} ms"
    return f"{value:.2f} s" if value < 60 else f"{value / 60:.1f} min"


def about(value: float) -> str:
    """Render a duration that is an estimate, without more digits than it has meaning."""
    if value < 60:
        return f"{max(1, round(value))} s"
    minutes = round(value / 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


def statistics_line(completion: Completion) -> str:
    """Render tokens, time to first token, speed and how it ended in a line."""
    usage, timing = completion.usage, completion.timing
    parts = [_tokens(usage.completion_tokens)]
    if timing.first_token is not None:
        parts.append(f"first after {seconds(timing.first_token)}")
    if timing.tokens_per_second is not None:
        parts.append(f"{timing.tokens_per_second:.1f} tokens/s")
    ends = dict.fromkeys(END_WORDS[sample.finish_reason] for sample in completion.samples)
    parts.extend((f"prompt {_tokens(usage.prompt_tokens)}", ", ".join(ends)))
    return SEPARATOR.join(parts)


def totals_line(totals: Totals) -> str:
    """Render the figures of a session in a line."""
    answers = f"{totals.answers} answer" + ("" if totals.answers == 1 else "s")
    parts = [
        answers,
        _tokens(totals.completion_tokens),
        f"prompts {_tokens(totals.prompt_tokens)}",
        f"{seconds(totals.seconds)} of generation",
    ]
    return SEPARATOR.join(parts)


def _tokens(count: int) -> str:
    """Render a token count."""
    return f"{count} token" + ("" if count == 1 else "s")
