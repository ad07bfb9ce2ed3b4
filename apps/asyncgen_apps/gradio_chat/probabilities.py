"""Draws the probabilities of an answer: each token on the colour of its probability.

Pure: log-probabilities in, HTML out. The card that a token shows under the pointer is drawn in the
browser, by ``probabilities.js``, from the numbers that each token carries.
"""

from __future__ import annotations

import json
from html import escape
from math import exp
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from asyncgen import TokenLogprob


SCRIPT = Path(__file__).with_name("probabilities.js").read_text(encoding="utf-8")
STYLE = Path(__file__).with_name("probabilities.css").read_text(encoding="utf-8")

MOST_DRAWN = 12_000
"""Tokens and alternatives that are drawn: 40 ms in the event loop, and 1 MB for the browser."""

EMPTY = (
    '<p class="nothing">No probabilities yet. Ask something in the chat: they are recorded while '
    "the answer is written, and kept until the page is reloaded.</p>"
)


_TOKENS = (
    'tabindex="0" role="application" aria-label="Tokens" '
    'aria-description="The arrow keys go from one token to the next."'
)


def heat_map(logprobs: Sequence[TokenLogprob]) -> str:
    """Draw an answer.

    Args:
        logprobs: One entry a token, in order.

    Returns:
        HTML: a line of figures, the colour scale, and the text, token by token; of a long answer
        its beginning. Everything that the model wrote is escaped.
    """
    if not logprobs:
        return EMPTY
    shown = logprobs[: MOST_DRAWN // (1 + len(logprobs[0].top))]
    tokens = "".join([_token(each) for each in shown])
    left = len(logprobs) - len(shown)
    rest = f'<p class="nothing">{left} more tokens are not drawn.</p>' if left else ""
    return f'{_summary(logprobs)}{_scale()}<div class="tokens" {_TOKENS}>{tokens}</div>{rest}'


def _token(entry: TokenLogprob) -> str:
    """Return one token as HTML; a line break is shown, and breaks the line."""
    probability = exp(entry.logprob)
    alternatives = [[each.token, round(exp(each.logprob), 6)] for each in entry.top]
    data = escape(json.dumps([entry.token, round(probability, 6), alternatives]), quote=True)
    text = escape(entry.token).replace("\n", "↵<br>") or "∅"
    return f'<span class="token" style="--p:{probability:.3f}" data-token="{data}">{text}</span>'


def _summary(logprobs: Sequence[TokenLogprob]) -> str:
    """Return the figures of the whole answer."""
    count = len(logprobs)
    mean = sum(each.logprob for each in logprobs) / count
    first = [each for each in logprobs if each.top and each.top[0].token_id == each.token_id]
    figures = {
        "tokens": str(count),
        "perplexity": f"{exp(min(-mean, 700)):.2f}",
        "mean probability": f"{sum(exp(each.logprob) for each in logprobs) / count:.0%}",
    }
    if any(each.top for each in logprobs):
        figures["most probable token taken"] = f"{len(first) / count:.0%}"
    items = "".join(
        [f"<div><dt>{name}</dt><dd>{value}</dd></div>" for name, value in figures.items()]
    )
    return f'<dl class="summary">{items}</dl>'


def _scale() -> str:
    return (
        '<div class="scale"><span>0%</span><i></i><span>100%</span>'
        "<em>probability of each token; point at one for the alternatives, or go from one to the "
        "next with the arrow keys</em></div>"
    )
