"""Compiled grammar over the tokens of a model, and a matcher for each row.

The state of a matcher depends only on the ids that a row has generated; it can move to any of them,
forwards and back. So a row that is preempted, has draft tokens, or resumes after ids that were
generated elsewhere is allowed the same tokens. This module knows bits and ids; the grammar engine
is an object that the caller gives.
"""

from __future__ import annotations

from ctypes import c_uint32
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError
from asyncgen.structured.marker_search import START
from asyncgen.structured.prototype import (
    forced_problem,
    hidden_problem,
    is_of_lexer,
    problem_of,
    replay,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence
    from ctypes import Array

    from torch import Tensor

    from asyncgen.structured.marker_search import MarkerSearch
    from asyncgen.structured.output_format import OutputFormat
    from asyncgen.structured.prototype import Prototype


class Grammar:
    """A compiled output format.

    Attributes:
        output_format: The source of the grammar.
        vocab_size: V, the number of scores in a row.
        num_words: Words of 32 bits in the mask of one row.
        is_canonical: Forced bytes are tokenised as the tokenizer would; if False, nothing is
            forced.
        tokens: The tokenizer of the grammar engine.
        search: Search for the place where the format begins; ``None`` if it begins at once.
        own_eos: End-of-text ids of that tokenizer, which may differ from those of a row.
        problem: What is wrong with a row that has become too complex; ``None`` while none has.
    """

    def __init__(
        self,
        output_format: OutputFormat,
        prototype: Prototype,
        tokens: Any,
        vocab_size: int,
        search: MarkerSearch | None = None,
    ) -> None:
        """Keep the prototype of matchers.

        Args:
            output_format: The source of the grammar.
            prototype: Gives matchers of llguidance at the beginning.
            tokens: The tokenizer of llguidance that it was compiled for.
            vocab_size: Number of scores in a row.
            search: Search for the place where the format begins; ``None`` if it begins at once.
        """
        self.search = search
        self._starts: dict[bytes, tuple[int, ...] | None] = {b"": ()}
        self.output_format = output_format
        self.vocab_size = vocab_size
        self.num_words = -(-int(tokens.vocab_size) // 32)
        self.is_canonical = bool(tokens.is_canonical)
        self.tokens = tokens
        self.own_eos = frozenset(map(int, tokens.eos_tokens))
        self.problem: str | None = None
        self._prototype = prototype

    def matcher(self, eos_token_ids: Collection[int] = ()) -> Matcher:
        """Return a matcher at the beginning; costs some microseconds.

        Args:
            eos_token_ids: Ids that end a row: allowed only if the grammar is complete, whatever
                their text.
        """
        return Matcher(self, self._prototype.latest, frozenset(eos_token_ids))

    def start(self, text: bytes) -> tuple[int, ...] | None:
        """Return the ids with which an answer of the format may begin, of a text.

        White space before the format is left out where the format has none.

        Args:
            text: Text of the token behind the marker after which the format begins.

        Returns:
            ``None`` if the format does not begin so.
        """
        if text not in self._starts:
            prototype = self._prototype.latest
            if prototype.is_broken:
                prototype = next(prototype.replacements(), prototype)
                self._prototype.follow_to(prototype)
            found = (
                ids
                for ids in map(self._tokenized, (text, text.lstrip()))
                if prototype.copy().validate_tokens(list(ids)) == len(ids)
            )
            self._starts[text] = next(found, None)
        return self._starts[text]

    def _tokenized(self, text: bytes) -> tuple[int, ...]:
        return tuple(self.tokens.tokenize_bytes(text)) if text else ()


class Matcher:
    """State of one row in a grammar.

    Attributes:
        grammar: The grammar.
        token_ids: All generated ids of the row.
        is_lost: True if these ids, without an end-of-sequence id at the end, begin no allowed text;
            then everything is allowed.
        has_ended: True if the last of them is an end-of-sequence id.
    """

    __slots__ = (
        "_eos",
        "_forced",
        "_foreign_eos",
        "_consumed",
        "_inner",
        "_place",
        "_prototype",
        "_steps",
        "_tail",
        "grammar",
        "has_ended",
        "is_lost",
        "token_ids",
    )

    def __init__(self, grammar: Grammar, prototype: Prototype, eos: frozenset[int]) -> None:
        """Begin; made by :meth:`Grammar.matcher`."""
        self.grammar = grammar
        self.token_ids: list[int] = []
        self.is_lost = self.has_ended = False
        self._prototype = prototype
        self._inner = prototype.copy()
        self._consumed: list[int] = []
        self._eos = eos
        self._foreign_eos = grammar.own_eos - eos
        # For rollback, of each id: the tokens of the grammar that it consumed, and the values of
        # the other attributes before it.
        self._steps: list[tuple[int, tuple[int, ...], int, bytes | None, bool, bool]] = []
        self._tail: bytes | None = None if grammar.search is None else START
        self._forced: tuple[int, ...] = ()
        self._place = 0  # how many of them the row has
        self._look_ahead()

    def copy(self) -> Matcher:
        """Return a new matcher at the beginning."""
        return self.grammar.matcher(self._eos)

    @property
    def is_free(self) -> bool:
        """True if any text is allowed: the format has not begun, or the row has left it."""
        return self._tail is not None or self.is_lost or self.has_ended

    @property
    def is_complete(self) -> bool:
        """True if the text may end here."""
        if self._tail is not None:
            return self.grammar.output_format.may_never_begin
        return not self.is_lost and (self.has_ended or bool(self._inner.is_accepting()))

    @property
    def is_over(self) -> bool:
        """True if the text must end here: it is complete, and nothing may follow."""
        return (
            self._tail is None
            and not self.is_lost
            and bool(self._inner.is_stopped())
            and bool(self._inner.is_accepting())
        )

    @property
    def forced(self) -> tuple[int, ...]:
        """Ids that must come next, in this order; may be none."""
        return self._forced[self._place :]

    def accept(self, token_id: int) -> bool:
        """Advance by one id.

        Args:
            token_id: The next id of the row.

        Returns:
            True if the grammar allows it.

        Raises:
            InvalidRequestError: The step is too expensive.
        """
        before = (self._forced, self._place, self._tail, self.is_lost, self.has_ended)
        self.token_ids.append(token_id)
        count = 0
        if self.is_lost or self.has_ended:
            pass
        elif token_id in self._eos:
            self.is_lost = not self.is_complete
            self.has_ended = True
        elif self._tail is None:
            count = self._consume((token_id,))
        else:
            count = self._seek(token_id)
        self._steps.append((count, *before))
        forced, place = before[:2]
        if place < len(forced) and forced[place] == token_id:
            self._place += 1
        else:
            self._forced, self._place = (), 0
        if self._place == len(self._forced):
            self._look_ahead()
        return not self.is_lost

    def rollback(self, count: int) -> None:
        """Undo the last ``count`` ids."""
        for _ in range(count):
            consumed, forced, place, tail, is_lost, has_ended = self._steps.pop()
            self._forced, self._place, self._tail = forced, place, tail
            self.is_lost, self.has_ended = is_lost, has_ended
            self.token_ids.pop()
            if consumed:
                self._inner.rollback(consumed)
                del self._consumed[-consumed:]

    def follow(self, token_ids: Sequence[int], start: int = 0) -> None:
        """Move to a row's ids, from the ids that they have in common with the present ones.

        Args:
            token_ids: All ids of the row.
            start: Number of ids of its prompt.

        Raises:
            InvalidRequestError: As `accept`.
        """
        own = self.token_ids
        length = len(token_ids) - start
        if length < len(own) or list(token_ids[start : start + len(own)]) != own:
            pairs = zip(own, token_ids[start:], strict=False)
            differ = (place for place, (mine, given) in enumerate(pairs) if mine != given)
            self.rollback(len(own) - next(differ, min(len(own), length)))
        self.extend(token_ids, start)

    def extend(self, token_ids: Sequence[int], start: int = 0) -> None:
        """Move to a row's ids, which begin with the present ones; see `follow`."""
        for token_id in token_ids[start + len(self.token_ids) :]:
            self.accept(token_id)

    def fill(self, words: Tensor) -> None:
        """Write the mask of ids that may come next.

        Args:
            words: int32 [num_words] on the CPU, contiguous: bit ``t % 32`` of word ``t // 32`` is
                set for each allowed id t; all bits are set if the row is free.

        Raises:
            InvalidRequestError: The step is too expensive, or no id is allowed.
        """
        bits = (c_uint32 * self.grammar.num_words).from_address(words.data_ptr())
        if self.is_free:
            words.fill_(-1)
            if self._tail is not None and not self.grammar.output_format.may_never_begin:
                for token_id in self._eos:
                    _set(bits, token_id, value=False)
            for token_id in self._barred():
                _set(bits, token_id, value=False)
            return
        if self._place < len(self._forced):
            words.zero_()
            _set(bits, self._forced[self._place])
            return
        self._inner.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * 4)
        if self._has_stopped():
            self._move(lambda inner: inner.compute_bitmask())
            self._look_ahead()  # what was forced here may have been cut short
            self.fill(words)
            return
        ends = self._inner.is_accepting()
        for token_id in self._foreign_eos:
            _set(bits, token_id, value=False)
        loses = not ends and any(_is_set(bits, token_id) for token_id in self._eos)
        for token_id in self._eos:
            _set(bits, token_id, value=ends)
        if loses and not words.any():
            raise self._error(
                "it goes on only with tokens that end an answer: see `stop_token_ids`"
            )

    def _consume(self, token_ids: tuple[int, ...]) -> int:
        """Pass ids to the grammar; return the number that it took. The row is lost if not all."""
        taken = 0
        for token_id in token_ids:
            if token_id >= self.grammar.tokens.vocab_size or not self._takes(token_id):
                self.is_lost = True
                break
            taken += 1
        return taken

    def _takes(self, token_id: int) -> bool:
        taken = self._inner.try_consume_tokens((token_id,)) == 1
        if not taken and hidden_problem(self._inner):
            self._prototype.is_broken = True
        if self._has_stopped():
            taken = self._move(lambda inner: inner.try_consume_tokens((token_id,)) == 1)
        if taken:
            self._consumed.append(token_id)
        return bool(taken)

    def _seek(self, token_id: int) -> int:
        """Search for the text before the format; return the number of ids consumed after it."""
        search = self.grammar.search
        assert self._tail is not None and search is not None
        self._tail, rest = search.split(self._tail, _bytes_of(self.grammar.tokens, token_id))
        if rest is None:
            return 0
        self._tail = None
        if hidden_problem(self._inner):
            self._prototype.is_broken = True
        start = self.grammar.start(rest)
        if start is None:
            self.is_lost = True
            return 0
        return self._consume(start)

    def _barred(self) -> Iterator[int]:
        """Yield the ids that would begin the format with a text which it does not allow."""
        search = self.grammar.search
        if self._tail is None or search is None:
            return
        for token_id, rest in search.crossing(self._tail):
            if self.grammar.start(rest) is None:
                yield token_id

    def _look_ahead(self) -> None:
        """Compute the ids that are forced next."""
        self._forced, self._place = (), 0
        if self.is_free or not self.grammar.is_canonical or self._inner.is_stopped():
            return
        forced = tuple(self._inner.compute_ff_tokens())
        if self._has_stopped():
            forced = tuple(self._move(lambda inner: inner.compute_ff_tokens()))
        if (problem := forced_problem(len(forced))) is not None:
            raise self._error(problem)
        size = self.grammar.vocab_size
        if any(token_id in self._eos or token_id >= size for token_id in forced):
            return
        if not self._allows(forced):
            # The text holds that of a special token, with which no text may be written. The mask
            # would have it as well.
            forced = tuple(self.grammar.tokens.greedy_tokenize(self._forced_text()))
            if not self._allows(forced):
                return
        self._forced = forced

    def _allows(self, token_ids: tuple[int, ...]) -> bool:
        return bool(self._inner.validate_tokens(list(token_ids)) == len(token_ids))

    def _forced_text(self) -> str:
        """Return the text that is forced next, up to the last whole character."""
        return bytes(self._inner.compute_ff_bytes()).decode(errors="ignore")

    def _has_stopped(self) -> bool:
        """Tell whether the lexer has stopped, in this row or in another one.

        Raises:
            InvalidRequestError: The row itself cannot go on.
        """
        if self._prototype.is_broken:
            return True
        if not self._inner.is_error():
            return False
        problem = problem_of(self._inner)
        if not is_of_lexer(problem):
            raise self._too_complex(problem)
        self._prototype.is_broken = True
        return True

    def _move(self, operation: Callable[[Any], Any]) -> Any:
        """Do an operation with a lexer that has not stopped, and stay there.

        Raises:
            InvalidRequestError: It is this row at which lexers stop, or too many were made.
        """
        problem = problem_of(self._inner) or "other answers of this format were too complex"
        for prototype in self._prototype.replacements() if self.grammar.problem is None else ():
            inner = prototype.copy()
            is_there = replay(inner, self._consumed)
            found = operation(inner) if is_there else None
            problem = problem_of(inner) or hidden_problem(inner)
            if is_there and not problem:
                self._prototype.follow_to(prototype)
                self._prototype, self._inner = prototype, inner
                return found
            prototype.is_broken = True
        raise self._too_complex(problem)

    def _too_complex(self, problem: str) -> InvalidRequestError:
        """Return the error of a row that cannot go on; then no other of its request does."""
        self.grammar.problem = self.grammar.problem or problem
        return self._error(f"it is too complex to go on at this place: {self.grammar.problem}")

    def _error(self, problem: str) -> InvalidRequestError:
        source = self.grammar.output_format
        return InvalidRequestError(source.parameter, source.source[:80], problem)


def _set(bits: Array[c_uint32], token_id: int, *, value: bool = True) -> None:
    """Set or clear the bit of an id."""
    place, bit = divmod(token_id, 32)
    bits[place] = bits[place] | 1 << bit if value else bits[place] & ~(1 << bit)


def _is_set(bits: Array[c_uint32], token_id: int) -> bool:
    """Tell whether the bit of an id is set."""
    return bool(bits[token_id // 32] >> token_id % 32 & 1)


def _bytes_of(tokens: Any, token_id: int) -> bytes:
    """Return the text of an id; for a special token its name."""
    return bytes(tokens.decode_bytes([token_id])) if token_id < tokens.vocab_size else b""
