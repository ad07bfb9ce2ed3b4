"""Makes a grammar of a shape and a tokenizer, within limits, and keeps those that were made.

The one module that knows llguidance (https://github.com/guidance-ai/llguidance). It runs where
requests are made ready, off the event loops and off the thread that computes; llguidance lets go
of the interpreter lock while it compiles. What a tokenizer needs is built at its first grammar,
once, with the lock held: 0.7 s at 64,000 tokens.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.structured.grammar import MOST_FORCED, Grammar

if TYPE_CHECKING:
    from asyncgen.structured.output_format import OutputFormat


_MOST_KEPT = 128
"""Grammars of a tokenizer that are kept, those used last."""

_SEPARATORS: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""JSON is written on one line, as `json.dumps` does: so its punctuation is forced, and no model
can fill its tokens with spaces."""

_LIMITS: dict[str, Any] = {
    "max_items_in_row": 2_000,
    "initial_lexer_fuel": 1_000_000,
    "step_lexer_fuel": 200_000,
    "step_max_items": 50_000,
    "max_lexer_states": 50_000,
    "max_grammar_size": 200_000,
    "precompute_large_lexemes": False,
    "verbose_errors": False,
}
"""What a grammar may cost: to compile, half a second; a step, some milliseconds."""

_compilers: weakref.WeakKeyDictionary[Any, dict[int, Compiler]] = weakref.WeakKeyDictionary()
_lock = threading.Lock()


def compile_grammar(shape: OutputFormat, tokenizer: Any, vocab_size: int) -> Grammar:
    """Return the grammar of a shape; one that was compiled of late costs a copy.

    Args:
        shape: What the answer must look like.
        tokenizer: Of the model, with a ``backend_tokenizer`` of the library `tokenizers`.
        vocab_size: Scores a row that the model makes.

    Returns:
        The grammar.

    Raises:
        InvalidRequestError: It cannot be compiled: it is wrong, it holds what is not supported, or
            it takes too much; or llguidance is not installed, or the tokenizer is of another kind.
    """
    return compiler_of(shape.parameter, tokenizer, vocab_size).compile(shape)


def compiler_of(parameter: str, tokenizer: Any, vocab_size: int) -> Compiler:
    """Return the compiler of a tokenizer; for errors it is told the parameter that needs it."""
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        remedy = "needs the package `llguidance`: pip install 'asyncgen[structured]'"
        raise InvalidRequestError(parameter, "given", remedy) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "to_str"):
        kind = type(tokenizer).__name__
        allowed = f"needs a tokenizer of the library `tokenizers`, and this is a {kind}"
        raise InvalidRequestError(parameter, "given", allowed)
    with _lock:
        known = _compilers.setdefault(tokenizer, {})
        if vocab_size not in known:
            known[vocab_size] = Compiler(backend, tokenizer.eos_token_id, vocab_size)
        return known[vocab_size]


class Compiler:
    """Compiles for one tokenizer; may be called from several threads."""

    def __init__(self, backend: Any, eos_token_id: int | None, vocab_size: int) -> None:
        """Lay the tokens out.

        Args:
            backend: A tokenizer of the library `tokenizers`.
            eos_token_id: Of the tokenizer; ``None`` where it has none.
            vocab_size: Scores a row that the model makes.
        """
        from llguidance import LLParserLimits, LLTokenizer

        size = max(vocab_size, backend.get_vocab_size(with_added_tokens=True))
        text = backend.to_str()
        try:
            self._tokens = LLTokenizer(text, n_vocab=size, eos_token=eos_token_id)
        except ValueError as error:
            allowed = f"the tokenizer is of a kind that llguidance does not read: {error}"
            raise InvalidRequestError("tokenizer", type(backend).__name__, allowed) from error
        self._limits = LLParserLimits(**_LIMITS)
        self._vocab_size = vocab_size
        self._kept: OrderedDict[tuple[str, str], Any] = OrderedDict()
        self._lock = threading.Lock()

    def compile(self, shape: OutputFormat) -> Grammar:
        """Compile a shape, or take what was compiled; see `compile_grammar`."""
        key = shape.kind, shape.source
        with self._lock:
            matcher = self._kept.get(key)
            if matcher is not None:
                self._kept.move_to_end(key)
        if matcher is None:
            matcher = self._compiled(shape)
            with self._lock:
                self._kept[key] = matcher
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        return Grammar(shape, matcher, self._tokens, self._vocab_size)

    def _compiled(self, shape: OutputFormat) -> Any:
        """A matcher at the beginning of the grammar, to be copied."""
        from llguidance import LLMatcher

        matcher = LLMatcher(self._tokens, _grammar_text(shape), log_level=0, limits=self._limits)
        problem = matcher.get_error() if matcher.is_error() else ""
        problem = problem or "; ".join(matcher.get_grammar_warnings())
        if not problem:
            # What the first mask finds out is better said now than in the first step.
            first = matcher.deep_copy()
            while forced := first.compute_ff_tokens():
                if len(forced) > MOST_FORCED:
                    problem = f"it forces {len(forced)} tokens at one place; at most {MOST_FORCED}"
                if problem or first.try_consume_tokens(forced) < len(forced):
                    break
            if not first.is_stopped():
                first.compute_bitmask()
            problem = first.get_error() if first.is_error() else problem
        if problem:
            raise InvalidRequestError(shape.parameter, _shortly(shape.source), _in_a_line(problem))
        return matcher


def _grammar_text(shape: OutputFormat) -> str:
    """A shape in the form that llguidance reads."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if shape.kind == "json":
        try:
            return LLMatcher.grammar_from_json_schema(shape.source, defaults=_SEPARATORS)
        except ValueError as error:
            raise InvalidRequestError(
                shape.parameter, _shortly(shape.source), _in_a_line(str(error))
            ) from error
    if shape.kind == "regex":
        return LLMatcher.grammar_from_regex(shape.source)
    text = shape.source
    if shape.parameter == "grammar":
        try:
            text = any_to_lark(text)
        except Exception as error:
            allowed = f"neither Lark nor GBNF: {_in_a_line(str(error))}"
            raise InvalidRequestError(shape.parameter, _shortly(text), allowed) from error
    return LLMatcher.grammar_from_lark(text)


def _shortly(source: str) -> str:
    return source if len(source) <= 80 else f"{source[:80]}…"


def _in_a_line(problem: str) -> str:
    """What llguidance says, in one line."""
    return " ".join(problem.split())[:400]
