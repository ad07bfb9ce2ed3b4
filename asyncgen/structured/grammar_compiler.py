"""Compile grammars for an output format and a tokenizer, within limits, and cache them.

Only this module knows llguidance (https://github.com/guidance-ai/llguidance). It runs on the
threads that prepare requests, not on event loops nor on the decode thread; llguidance releases the
interpreter lock while it compiles. The tables of a tokenizer are built once, at its first grammar,
with the lock held: 0.7 s at 64,000 tokens.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError, InWords
from asyncgen.structured.dry_run import dry_run, dry_run_products
from asyncgen.structured.grammar import Grammar
from asyncgen.structured.lark_cost import LarkCost
from asyncgen.structured.marker_search import START, MarkerSearch
from asyncgen.structured.pattern_cost import cost_problem, optional_parts
from asyncgen.structured.prototype import Prototype, RenewalBudget

if TYPE_CHECKING:
    from collections.abc import Mapping

    from asyncgen.structured.output_format import OutputFormat


_MOST_KEPT = 128
"""Most cached grammars of a tokenizer; the least recently used one goes first."""

_MOST_BYTES = 1024
"""Bytes of the longest token that the search tree of llguidance can hold."""

_MOST_ADDED = 2**14
"""Added tokens: its time goes with their square, a second at so many. Gemma has 6,400."""

_MOST_TOKENS = 2**19
_MOST_OF_TOKENS = 2**23
"""Tokens, and bytes of all of them in UTF-8: building the tree holds the process, for 4 s at twice
as many, and took 2 GB for 60 MB. The largest vocabularies have 262,144 tokens of 3 MB."""

_ONE_OF = "oneOf constraints are not supported"
"""Words of llguidance, which go on with an option of its own."""

_SEPARATORS: Any = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
"""JSON is written on one line, as by `json.dumps`: its punctuation is forced, and no model can
waste its tokens on spaces."""

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
"""Limits on the cost of a grammar: half a second to compile, some milliseconds a step."""

_LIMITS_OF_GRAMMARS = _LIMITS | {"max_items_in_row": 700, "step_max_items": 10_000}
"""Limits for grammars that users write, which may be ambiguous: the cost of a step is the square of
the items in a row."""

_compilers: weakref.WeakKeyDictionary[Any, dict[int, Compiler | str]]
_compilers = weakref.WeakKeyDictionary()
"""By tokenizer and vocabulary; a text says why there is none, as finding out costs as much."""
_lock = threading.Lock()


def compile_grammar(output_format: OutputFormat, tokenizer: Any, vocab_size: int) -> Grammar:
    """Return the grammar of an output format; a cached one costs a copy.

    Args:
        output_format: Format of the answer.
        tokenizer: Tokenizer of the model, with a ``backend_tokenizer`` of the library `tokenizers`.
        vocab_size: Number of scores in a row of logits.

    Raises:
        InvalidRequestError: The format is wrong, not supported or too complex; llguidance is not
            installed; or the tokenizer is of another kind.
    """
    return compiler_of(output_format.parameter, tokenizer, vocab_size).compile(output_format)


def compiler_of(parameter: str, tokenizer: Any, vocab_size: int) -> Compiler:
    """Return the compiler of a tokenizer; errors name the given parameter."""
    try:
        import llguidance  # noqa: F401
    except ImportError as error:
        remedy = "needs the package `llguidance`: pip install 'asyncgen[structured]'"
        raise InvalidRequestError(parameter, InWords("given"), remedy) from error
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if not hasattr(backend, "to_str"):
        kind = tokenizer.__class__.__name__
        allowed = f"needs a tokenizer of the library `tokenizers`, and this is a {kind}"
        raise InvalidRequestError(parameter, InWords("given"), allowed)
    with _lock:
        known = _compilers.setdefault(tokenizer, {})
        if vocab_size not in known:
            known[vocab_size] = _compiler(backend, tokenizer.eos_token_id, vocab_size)
        found = known[vocab_size]
    if isinstance(found, str):
        raise InvalidRequestError("tokenizer", type(backend).__name__, found)
    return found


def _compiler(backend: Any, eos_token_id: int | None, vocab_size: int) -> Compiler | str:
    """Return the compiler of a tokenizer, or why llguidance does not read it."""
    count = backend.get_vocab_size(with_added_tokens=True)
    if count > _MOST_TOKENS:
        return f"structured output takes tokenizers of at most {_MOST_TOKENS} tokens, not {count}"
    added = len(backend.get_added_tokens_decoder())
    if added > _MOST_ADDED:
        return f"structured output takes at most {_MOST_ADDED} added tokens, not {added}"
    length = len("".join(backend.get_vocab(with_added_tokens=True)).encode(errors="replace"))
    if length > _MOST_OF_TOKENS:
        return f"structured output takes tokens of at most {_MOST_OF_TOKENS} bytes, not {length}"
    try:
        return Compiler(backend, eos_token_id, vocab_size)
    except BaseException as error:  # a panic of the library is no `Exception`
        if not isinstance(error, ValueError) and type(error).__name__ != "PanicException":
            raise
        reason = _on_one_line(str(error))
        if "num_parents" in reason:
            reason = f"a token of more than {_MOST_BYTES} bytes"
        return f"the tokenizer is of a kind that llguidance does not read: {reason}"


def is_special(text: str, *, special: bool) -> bool:
    """Tell whether llguidance takes an added token for a special one, which no text spells.

    Args:
        text: Text of the token.
        special: The tokenizer declares it as special.
    """
    return special or (text.startswith("<") and text.endswith(">"))


class Compiler:
    """Compiles for one tokenizer; may be called from several threads."""

    def __init__(self, backend: Any, eos_token_id: int | None, vocab_size: int) -> None:
        """Build the tables of the tokenizer.

        Args:
            backend: A tokenizer of the library `tokenizers`.
            eos_token_id: End-of-sequence id of the tokenizer; ``None`` if it has none.
            vocab_size: Number of scores in a row of logits.
        """
        from llguidance import LLTokenizer

        size = max(vocab_size, backend.get_vocab_size(with_added_tokens=True))
        text = backend.to_str()
        self._tokens = LLTokenizer(text, n_vocab=size, eos_token=eos_token_id)
        self._vocab_size = vocab_size
        self._kept: OrderedDict[tuple[str, str], Prototype] = OrderedDict()
        self._budget = RenewalBudget()
        self._searches: dict[tuple[tuple[bytes, ...], bytes], MarkerSearch] = {}
        self._lock = threading.Lock()

    def compile(self, output_format: OutputFormat) -> Grammar:
        """Compile an output format, or take it from the cache; see `compile_grammar`."""
        key = output_format.kind, output_format.source
        with self._lock:
            prototype = self._kept.get(key)
            if prototype is not None:
                prototype = self._kept[key] = prototype.latest
                self._kept.move_to_end(key)
        if prototype is None or prototype.is_broken:
            broken, prototype = prototype, self._compiled(output_format)
            if broken is not None:
                broken.follow_to(prototype)
            with self._lock:
                self._kept[key] = prototype
                self._kept.move_to_end(key)
                if len(self._kept) > _MOST_KEPT:
                    self._kept.popitem(last=False)
        search = self._search_of(output_format) if output_format.after else None
        return Grammar(output_format, prototype, self._tokens, self._vocab_size, search)

    def _search_of(self, output_format: OutputFormat) -> MarkerSearch:
        """Return the search for where a format begins; the vocabulary is read once for each."""
        markers = [each.encode() for each in (output_format.after, *output_format.others)]
        markers += [START + each.encode() for each in output_format.at_start]
        key = tuple(markers), output_format.bare.encode()
        with self._lock:
            if key not in self._searches:
                size = int(self._tokens.vocab_size)
                texts = [bytes(self._tokens.decode_bytes([number])) for number in range(size)]
                self._searches[key] = MarkerSearch(markers, texts, key[1])
            return self._searches[key]

    def _compiled(self, output_format: OutputFormat) -> Prototype:
        """Return what gives matchers at the beginning of the grammar."""
        from llguidance import LLMatcher, LLParserLimits

        limits = _LIMITS_OF_GRAMMARS if output_format.parameter == "grammar" else _LIMITS
        grammar = _grammar_text(output_format)
        costs = self._problem_of_cost(output_format, grammar, limits)
        if costs is not None:
            raise _refused(output_format, costs)
        tokens = self._tokens

        def make() -> Any:
            return LLMatcher(tokens, grammar, log_level=0, limits=LLParserLimits(**limits))

        prototype = Prototype(make, self._budget)
        if prototype.problem:
            raise _refused(output_format, prototype.problem)
        return prototype

    def _problem_of_cost(
        self, output_format: OutputFormat, grammar: str, limits: Mapping[str, Any]
    ) -> str | None:
        """Tell what makes a grammar too expensive to compile, or to begin."""
        if output_format.kind == "regex":
            problem = cost_problem([optional_parts(output_format.source)])
        elif output_format.kind == "lark":
            cost = LarkCost(grammar)
            problem = cost.problem
            if cost.products and problem is None:
                problem = dry_run_products(self._tokens, cost.terminals, cost.products, limits)
        else:
            problem = None  # schemas are checked when they are read
        return problem or dry_run(self._tokens, grammar, limits)


def _refused(output_format: OutputFormat, problem: str) -> InvalidRequestError:
    shown = _shortened(output_format.source)
    if _ONE_OF in problem:
        problem = "branches of `oneOf` that may match together are not supported: write `anyOf`"
    return InvalidRequestError(output_format.parameter, shown, _on_one_line(problem))


def _grammar_text(output_format: OutputFormat) -> str:
    """Return an output format in the syntax of llguidance."""
    from llguidance import LLMatcher
    from llguidance.gbnf_to_lark import any_to_lark

    if output_format.kind == "json":
        try:
            return LLMatcher.grammar_from_json_schema(output_format.source, defaults=_SEPARATORS)
        except ValueError as error:
            raise _refused(output_format, str(error)) from error
    if output_format.kind == "regex":
        return LLMatcher.grammar_from_regex(output_format.source)
    text = output_format.source
    if output_format.parameter == "grammar":
        try:
            text = any_to_lark(text)
        except Exception as error:
            allowed = f"neither Lark nor GBNF: {_on_one_line(str(error))}"
            raise InvalidRequestError(output_format.parameter, _shortened(text), allowed) from error
    return LLMatcher.grammar_from_lark(text)


def _shortened(source: str) -> str:
    return source if len(source) <= 80 else f"{source[:80]}…"


def _on_one_line(problem: str) -> str:
    """Return a message of llguidance as one line."""
    if problem.startswith("NoExtensionBias"):
        return "no text matches it"
    return " ".join(problem.split())[:400]
