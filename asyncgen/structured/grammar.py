"""A grammar over the tokens of a model, and a matcher for each row that follows it.

A matcher is a function of the ids that a row has generated, and of nothing else: it may be brought
to any of them, forwards and back. So a row that is preempted, drafted for, or taken up behind ids
that it generated elsewhere is allowed the same tokens. It knows bits and ids; the engine of
grammars stands behind it as an object that was handed in.
"""

from __future__ import annotations

from ctypes import c_uint32
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from ctypes import Array

    from torch import Tensor

    from asyncgen.structured.output_format import OutputFormat


MOST_FORCED = 4096
"""Tokens that a grammar may force at one place: they are looked for in one go."""


class Grammar:
    """A compiled shape.

    Attributes:
        shape: What was compiled.
        vocab_size: V, the scores of a row.
        num_words: Words of 32 bits that a mask of one row has.
        is_canonical: Whether forced bytes can be tokenised as the tokenizer would; where it is
            false, nothing is forced.
        tokens: The tokenizer, as the engine of grammars has it.
        own_eos: What that takes for the end of a text, whatever ends a row.
    """

    def __init__(self, shape: OutputFormat, prototype: Any, tokens: Any, vocab_size: int) -> None:
        """Keep what matchers are copied from.

        Args:
            shape: What was compiled.
            prototype: A matcher of llguidance at the beginning; only copied.
            tokens: The tokenizer of llguidance that it was compiled for.
            vocab_size: Scores of a row.
        """
        self.shape = shape
        self.vocab_size = vocab_size
        self.num_words = -(-int(tokens.vocab_size) // 32)
        self.is_canonical = bool(tokens.is_canonical)
        self.tokens = tokens
        self.own_eos = frozenset(map(int, tokens.eos_tokens))
        self._prototype = prototype

    def matcher(self, eos_token_ids: Collection[int] = ()) -> Matcher:
        """Return a matcher at the beginning; costs some microseconds.

        Args:
            eos_token_ids: Ids that end a row: allowed where the grammar is complete, and only
                there, whatever text they stand for.
        """
        return Matcher(self, self._prototype.deep_copy(), frozenset(eos_token_ids))


class Matcher:
    """Where one row is in a grammar.

    Attributes:
        grammar: The grammar.
        token_ids: What it was brought to: all generated ids.
        is_lost: Whether these ids, without an end-of-sequence id behind them, are no beginning of
            any allowed text; then everything is allowed.
        has_ended: Whether the last of them is an end-of-sequence id.
    """

    __slots__ = (
        "_eos",
        "_forced",
        "_foreign_eos",
        "_inner",
        "_place",
        "_steps",
        "_tail",
        "grammar",
        "has_ended",
        "is_lost",
        "token_ids",
    )

    def __init__(self, grammar: Grammar, inner: Any, eos: frozenset[int]) -> None:
        """Begin; made by :meth:`Grammar.matcher`."""
        self.grammar = grammar
        self.token_ids: list[int] = []
        self.is_lost = self.has_ended = False
        self._inner = inner
        self._eos = eos
        self._foreign_eos = grammar.own_eos - eos
        # What each id did, to be undone: tokens of the grammar that it consumed, and what stood
        # in the other attributes before it.
        self._steps: list[tuple[int, tuple[int, ...], int, bytes | None, bool, bool]] = []
        self._tail: bytes | None = b"" if grammar.shape.after else None
        self._forced: tuple[int, ...] = ()
        self._place = 0  # how many of them the row has
        self._look_ahead()

    def copy(self) -> Matcher:
        """Return another one at the beginning."""
        inner = self._inner.deep_copy()
        inner.reset()
        return Matcher(self.grammar, inner, self._eos)

    @property
    def is_free(self) -> bool:
        """Whether any text is allowed: the shape has not begun, or the row has left it."""
        return self._tail is not None or self.is_lost or self.has_ended

    @property
    def is_complete(self) -> bool:
        """Whether the text may end here."""
        if self._tail is not None:
            return self.grammar.shape.may_never_begin
        return not self.is_lost and (self.has_ended or bool(self._inner.is_accepting()))

    @property
    def is_over(self) -> bool:
        """Whether the text must end here: it is complete, and nothing may follow."""
        return (
            self._tail is None
            and not self.is_lost
            and bool(self._inner.is_stopped())
            and bool(self._inner.is_accepting())
        )

    @property
    def forced(self) -> tuple[int, ...]:
        """Ids that must come next, one after the other; may be none."""
        return self._forced[self._place :]

    def accept(self, token_id: int) -> bool:
        """Go on by one id.

        Args:
            token_id: The id that the row has taken.

        Returns:
            Whether the grammar allows it.

        Raises:
            InvalidRequestError: To go on would take more than a step may cost.
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
        """Take the last so many ids back."""
        for _ in range(count):
            consumed, forced, place, tail, is_lost, has_ended = self._steps.pop()
            self._forced, self._place, self._tail = forced, place, tail
            self.is_lost, self.has_ended = is_lost, has_ended
            self.token_ids.pop()
            if consumed:
                self._inner.rollback(consumed)

    def follow(self, token_ids: Sequence[int], start: int = 0) -> None:
        """Be brought to a row's ids, by way of what they have in common with those of before.

        Args:
            token_ids: All ids of the row.
            start: How many of them are its prompt.

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
        """Be brought to a row's ids, which begin with those of before; see `follow`."""
        for token_id in token_ids[start + len(self.token_ids) :]:
            self.accept(token_id)

    def fill(self, words: Tensor) -> None:
        """Write which ids may come next.

        Args:
            words: int32 [num_words] on the CPU, contiguous: bit ``t % 32`` of word ``t // 32`` is
                set for each id t that is allowed; all are where the row is free.

        Raises:
            InvalidRequestError: To find out would take more than a step may cost, or there is no
                such id.
        """
        bits = (c_uint32 * self.grammar.num_words).from_address(words.data_ptr())
        if self.is_free:
            words.fill_(-1)
            if self._tail is not None and not self.grammar.shape.may_never_begin:
                for token_id in self._eos:
                    _set(bits, token_id, value=False)
            return
        if self._place < len(self._forced):
            words.zero_()
            _set(bits, self._forced[self._place])
            return
        self._inner.unsafe_compute_mask_ptr(words.data_ptr(), words.numel() * 4)
        self._check()
        ends = self._inner.is_accepting()
        for token_id in self._foreign_eos:
            _set(bits, token_id, value=False)
        loses = not ends and any(_is_set(bits, token_id) for token_id in self._eos)
        for token_id in self._eos:
            _set(bits, token_id, value=ends)
        if loses and not words.any():
            shape = self.grammar.shape
            allowed = "it goes on only with tokens that end an answer: see `stop_token_ids`"
            raise InvalidRequestError(shape.parameter, shape.source[:80], allowed)

    def _consume(self, token_ids: tuple[int, ...]) -> int:
        """Hand ids to the grammar; return how many it took, and be lost if not all."""
        taken = 0
        for token_id in token_ids:
            if token_id >= self.grammar.tokens.vocab_size or not self._takes(token_id):
                self.is_lost = True
                break
            taken += 1
        return taken

    def _takes(self, token_id: int) -> bool:
        taken = self._inner.try_consume_tokens((token_id,)) == 1
        self._check()
        return taken

    def _seek(self, token_id: int) -> int:
        """Look for the text behind which the shape begins; return what was consumed behind it."""
        tokens, after = self.grammar.tokens, self.grammar.shape.after.encode()
        assert self._tail is not None
        text = self._tail + _bytes_of(tokens, token_id)
        place = text.find(after)
        if place < 0:
            self._tail = text[-(len(after) - 1) :] if len(after) > 1 else b""
            return 0
        self._tail = None
        rest = text[place + len(after) :].lstrip()
        return self._consume(tuple(tokens.tokenize_bytes(rest))) if rest else 0

    def _look_ahead(self) -> None:
        """Find out what is forced next."""
        self._forced, self._place = (), 0
        if self.is_free or not self.grammar.is_canonical or self._inner.is_stopped():
            return
        forced = tuple(self._inner.compute_ff_tokens())
        self._check()
        if len(forced) > MOST_FORCED:
            shape = self.grammar.shape
            allowed = f"it forces {len(forced)} tokens at one place; at most {MOST_FORCED}"
            raise InvalidRequestError(shape.parameter, shape.source[:80], allowed)
        size = self.grammar.vocab_size
        if any(token_id in self._eos or token_id >= size for token_id in forced):
            return
        self._forced = forced

    def _check(self) -> None:
        """Raise what the engine of grammars has run into."""
        if self._inner.is_error():
            problem = self._inner.get_error().strip().partition("\n")[0]
            allowed = f"it is too complex to go on at this place: {problem[:300]}"
            shape = self.grammar.shape
            raise InvalidRequestError(shape.parameter, shape.source[:80], allowed)


def _set(bits: Array[c_uint32], token_id: int, *, value: bool = True) -> None:
    """Set or clear the bit of an id."""
    place, bit = divmod(token_id, 32)
    bits[place] = bits[place] | 1 << bit if value else bits[place] & ~(1 << bit)


def _is_set(bits: Array[c_uint32], token_id: int) -> bool:
    """Whether the bit of an id is set."""
    return bool(bits[token_id // 32] >> token_id % 32 & 1)


def _bytes_of(tokens: Any, token_id: int) -> bytes:
    """The text of an id; that of a special token is its name."""
    return bytes(tokens.decode_bytes([token_id])) if token_id < tokens.vocab_size else b""
