"""Try a grammar out within the limits of the engine, before it is used.

llguidance counts what a mask costs, and stops. Two things it does without a limit: it follows the
bytes that a fresh grammar forces, with the interpreter held, and it tells whether products of
expressions match anything. Behind a token that is not forced, both have the limit of a mask. So a
grammar is read once behind such a token, which shows that it costs no more: some milliseconds.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_FUEL = 2_000_000
"""Fuel of the engine for what a grammar forces at its beginning: 40 milliseconds."""

_FIRST = "a"

_REMEDY = (
    "shorten repeats of parts that may be empty or match alike, such as `(a?){4000}`, texts that"
    " are forced, and lengths of patterns that hold together"
)


def dry_run(tokens: Any, grammar: str, limits: Mapping[str, Any]) -> str | None:
    """Follow what a grammar forces at its beginning, within limits.

    Args:
        tokens: A tokenizer of llguidance.
        grammar: In the form that the engine takes; a text that is no JSON is Lark.
        limits: Limits of the engine for this grammar.

    Returns:
        What is wrong with it; ``None`` if it can be used.
    """
    body = {"lark_grammar": grammar}
    if grammar.startswith("{"):
        body = {name: part for name, part in json.loads(grammar)["grammars"][0].items() if part}
    grammars = [{"lark_grammar": "start: <[0-1]> @body"}, {**body, "name": "body"}]
    matcher = _matcher(tokens, json.dumps({"grammars": grammars}), limits)
    return _problem_behind(matcher, 0)


def dry_run_products(
    tokens: Any, terminals: str, names: list[str], limits: Mapping[str, Any]
) -> str | None:
    """Read the first byte of terminals that intersect or negate expressions, within limits.

    Args:
        tokens: A tokenizer of llguidance.
        terminals: The definitions of all terminals, in Lark.
        names: Those that intersect or negate.
        limits: Limits of the engine for this grammar.

    Returns:
        What is wrong with them; ``None`` if they can be used.
    """
    lines = [f"TRIED{number}: /[{_FIRST}-z]/ ({name})" for number, name in enumerate(names)]
    tried = " | ".join(f"TRIED{number}" for number in range(len(names)))
    matcher = _matcher(tokens, "\n".join([f"start: {tried}", *lines, terminals]), limits)
    first = tokens.greedy_tokenize(_FIRST)
    if len(first) != 1:
        return "`&` and `~` need a vocabulary that has the letter `a`"
    return _problem_behind(matcher, first[0])


def _matcher(tokens: Any, grammar: str, limits: Mapping[str, Any]) -> Any:
    from llguidance import LLMatcher, LLParserLimits

    within = LLParserLimits(**{**limits, "step_lexer_fuel": _FUEL})
    return LLMatcher(tokens, grammar, log_level=0, limits=within)


def _problem_behind(matcher: Any, token_id: int) -> str | None:
    """Read a token that is one of several, and what is forced behind it."""
    if not matcher.is_error():
        matcher.compute_bitmask()  # sets the limits
        matcher.try_consume_tokens((token_id,))
        matcher.compute_bitmask()  # without the interpreter lock, as no other way of forcing is
        if not matcher.is_stopped():
            matcher.try_consume_tokens(matcher.compute_ff_tokens()[:1])  # tells of errors
    if not matcher.is_error():
        return None
    problem: str = matcher.get_error().replace("<non-verbose/>", "").strip()
    if "too many" not in problem:
        return problem
    return f"it is too expensive to begin: {problem}; {_REMEDY}"
