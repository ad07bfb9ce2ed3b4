"""Define constraints of an output, which constrained beam search fulfils token by token.

A `Constraint` is one demand and how far it is met; a `ConstraintListState` is several of them
along one sequence. Knows nothing of scores (Post and Vilar 2018, arXiv 1804.06609; Hu et al. 2019,
N19-1090, for constraints that are alternatives).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from asyncgen.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence


_MOST_CONSTRAINTS = 64
"""Each is looked at for every beam and candidate of a step."""

_MOST_CANDIDATES = 2**13
"""Forms of words, times beams: each may be a candidate of a step."""

_IDS = "a non-empty list of token ids, each an integer of at least 0"


class Constraint(ABC):
    """One demand on the output.

    Updating a constraint with what it asks for itself must complete it sooner or later::

        completed = False
        while not completed:
            _, completed, _ = constraint.update(constraint.advance())

    where of a list that `advance` returns any token will do.

    Attributes:
        seqlen: Tokens that it takes to complete it, at most.
    """

    seqlen: int

    def __init__(self) -> None:
        """Check that the demand can be met; subclasses call this last."""
        self.test()

    def test(self) -> None:
        """Go once through the constraint.

        Raises:
            ValueError: It refuses a token that it asked for, or does not come to an end.
        """
        completed = False
        for _ in range(10_000):
            wanted = self.advance()
            token_id = wanted[0] if isinstance(wanted, list) else wanted
            if token_id is None or not self.does_advance(token_id):
                raise ValueError(f"{type(self).__name__} refuses {token_id}, which it asked for")
            stepped, completed, was_reset = self.update(token_id)
            if completed:
                break
            if was_reset or not stepped:
                raise ValueError(f"{type(self).__name__} is reset by {token_id}, its own choice")
        if not completed or self.remaining() != 0:
            raise ValueError(f"{type(self).__name__} is never completed by its own choices")
        self.reset()

    @abstractmethod
    def advance(self) -> int | list[int] | None:
        """Tell the token or tokens that bring it one step further; ``None`` if it is complete."""

    @abstractmethod
    def does_advance(self, token_id: int) -> bool:
        """Tell whether a token brings it one step further."""

    @abstractmethod
    def update(self, token_id: int) -> tuple[bool, bool, bool]:
        """Take in the next token of the sequence.

        Returns:
            Whether it was brought further, whether it is complete now, and whether it had to
            begin anew because the token does not fit.
        """

    @abstractmethod
    def reset(self) -> None:
        """Go back to the beginning."""

    @abstractmethod
    def remaining(self) -> int:
        """Count the tokens that are missing."""

    @abstractmethod
    def copy(self, stateful: bool = False) -> Constraint:
        """Make another one, at the beginning or, with ``stateful``, as far as this one."""


class PhrasalConstraint(Constraint):
    """Demands an ordered sequence of tokens.

    Attributes:
        token_ids: The sequence.
        fulfilled_idx: Place of the last token that is there, -1 for none.
        completed: Whether all are there.
    """

    def __init__(self, token_ids: list[int]) -> None:
        """Keep the sequence.

        Args:
            token_ids: Token ids, at least one.

        Raises:
            InvalidRequestError: It is no such list.
        """
        if not _are_ids(token_ids):
            raise InvalidRequestError("token_ids", token_ids, _IDS)
        self.token_ids = token_ids
        self.seqlen = len(token_ids)
        self.fulfilled_idx = -1
        self.completed = False
        super().__init__()

    def advance(self) -> int | None:
        """See `Constraint`."""
        return None if self.completed else self.token_ids[self.fulfilled_idx + 1]

    def does_advance(self, token_id: int) -> bool:
        """See `Constraint`; TypeError for anything but an integer."""
        return _checked(token_id) == self.advance()

    def update(self, token_id: int) -> tuple[bool, bool, bool]:
        """See `Constraint`; TypeError for anything but an integer."""
        if not self.does_advance(token_id):
            self.reset()
            return False, False, True
        self.fulfilled_idx += 1
        self.completed = self.remaining() == 0
        return True, self.completed, False

    def reset(self) -> None:
        """See `Constraint`."""
        self.fulfilled_idx = -1
        self.completed = False

    def remaining(self) -> int:
        """See `Constraint`."""
        return self.seqlen - (self.fulfilled_idx + 1)

    def copy(self, stateful: bool = False) -> PhrasalConstraint:
        """See `Constraint`."""
        twin = copy.copy(self)  # checked once; the ids never change
        if not stateful:
            twin.reset()
        return twin


class DisjunctiveConstraint(Constraint):
    """Demands one of several sequences, such as the forms of a word.

    Attributes:
        token_ids: The alternatives.
        current_seq: What of one of them is there.
        completed: Whether one is there in full.
    """

    def __init__(self, nested_token_ids: list[list[int]]) -> None:
        """Keep the alternatives.

        Args:
            nested_token_ids: A list of words, each a list of token ids.

        Raises:
            InvalidRequestError: It is no such list, or one word begins with another one.
        """
        name = "nested_token_ids"
        if not isinstance(nested_token_ids, list) or not nested_token_ids:
            raise InvalidRequestError(name, nested_token_ids, "a non-empty list of lists of ids")
        if not all(map(_are_ids, nested_token_ids)):
            raise InvalidRequestError(name, nested_token_ids, f"each word must be {_IDS}")
        self._tree = _tree(nested_token_ids)
        self.token_ids = nested_token_ids
        self.seqlen = max(map(len, nested_token_ids))
        self.current_seq: list[int] = []
        self.completed = False
        super().__init__()

    def advance(self) -> list[int] | None:
        """See `Constraint`."""
        return list(self._place()) or None

    def does_advance(self, token_id: int) -> bool:
        """See `Constraint`; TypeError for anything but an integer."""
        return _checked(token_id) in self._place()

    def update(self, token_id: int) -> tuple[bool, bool, bool]:
        """See `Constraint`; TypeError for anything but an integer."""
        if not self.does_advance(token_id):
            self.reset()
            return False, False, True
        self.current_seq.append(token_id)
        self.completed = not self._place()
        return True, self.completed, False

    def reset(self) -> None:
        """See `Constraint`."""
        self.current_seq = []
        self.completed = False

    def remaining(self) -> int:
        """See `Constraint`; counts to the end of the longest word."""
        return 0 if self.completed else self.seqlen - len(self.current_seq)

    def copy(self, stateful: bool = False) -> DisjunctiveConstraint:
        """See `Constraint`."""
        twin = copy.copy(self)  # shares the tree, which never changes
        if stateful:
            twin.current_seq = list(self.current_seq)
        else:
            twin.reset()
        return twin

    def _place(self) -> dict[int, Any]:
        """The branches that are open."""
        place = self._tree
        for token_id in self.current_seq:
            place = place[token_id]
        return place


class ConstraintListState:
    """Several constraints along one sequence: at most one is in progress at a time.

    Attributes:
        constraints: The demands, as they were given; never changed.
        complete_constraints: Those that are met.
        inprogress_constraint: The one that the sequence is in the middle of, or ``None``.
        pending_constraints: Those that have not begun.
        completed: Whether all are met.
    """

    def __init__(self, constraints: Sequence[Constraint]) -> None:
        """Begin before the sequence.

        Args:
            constraints: At least one.
        """
        self.constraints = list(constraints)
        self.max_seqlen = max(constraint.seqlen for constraint in constraints)
        self.n_constraints = len(self.constraints)
        self.init_state()

    def init_state(self) -> None:
        """Forget the sequence."""
        self.completed = False
        self.complete_constraints: list[Constraint] = []
        self.inprogress_constraint: Constraint | None = None
        self.pending_constraints = [each.copy(stateful=False) for each in self.constraints]

    def get_bank(self) -> int:
        """Tell how far the sequence is: the more, the further; equals compete for beams."""
        begun = self.inprogress_constraint
        share = 0 if begun is None else self.max_seqlen - begun.remaining()
        return len(self.complete_constraints) * self.max_seqlen + share

    def advance(self) -> list[int] | None:
        """Tell the tokens that bring some constraint further; ``None`` if there are none."""
        begun = self.inprogress_constraint
        wanted: list[int] = []
        for each in self.pending_constraints if begun is None else [begun]:
            step = each.advance()
            wanted += step if isinstance(step, list) else [] if step is None else [step]
        return wanted or None

    def reset(self, token_ids: Iterable[int] | None) -> None:
        """Begin anew and go along a sequence."""
        self.init_state()
        for token_id in token_ids or ():
            self.add(token_id)
            if self.completed:
                break

    def add(self, token_id: int) -> tuple[bool, bool]:
        """Take in the next token of the sequence.

        Returns:
            Whether it completed a constraint (or all were complete), and whether it brought one
            further.

        Raises:
            TypeError: It is no integer.
        """
        _checked(token_id)
        if self.completed:
            return True, False
        if self.inprogress_constraint is not None:
            complete, stepped = self._go_on(self.inprogress_constraint, token_id)
        else:
            complete, stepped = self._begin(token_id)
        self.completed = not self.pending_constraints and self.inprogress_constraint is None
        return complete, stepped

    def copy(self, stateful: bool = True) -> ConstraintListState:
        """Make another one, as far as this one or, without ``stateful``, at the beginning."""
        twin = copy.copy(self)
        if stateful:
            begun = self.inprogress_constraint
            twin.complete_constraints = list(self.complete_constraints)
            twin.inprogress_constraint = None if begun is None else begun.copy(True)
            twin.pending_constraints = list(self.pending_constraints)
        else:
            twin.init_state()
        return twin

    def _go_on(self, begun: Constraint, token_id: int) -> tuple[bool, bool]:
        stepped, complete, was_reset = begun.update(token_id)
        if was_reset:
            self.pending_constraints.append(begun.copy(stateful=False))
            self.inprogress_constraint = None
        if complete:
            self.complete_constraints.append(begun)
            self.inprogress_constraint = None
        return complete, stepped

    def _begin(self, token_id: int) -> tuple[bool, bool]:
        for place, pending in enumerate(self.pending_constraints):
            if pending.does_advance(token_id):
                begun = pending.copy(stateful=False)  # copies of this state share the others
                stepped, complete, _ = begun.update(token_id)
                if complete:
                    self.complete_constraints.append(begun)
                elif stepped:
                    self.inprogress_constraint = begun
                if complete or stepped:
                    del self.pending_constraints[place]
                return complete, stepped
        return False, False


def check_constraints(config: Any) -> None:
    """Refuse constraints that cannot be met, and more of them than a step has time for.

    Args:
        config: An object with the fields of `GenerationConfig` as attributes.

    Raises:
        InvalidRequestError: Names the field, its value and what is allowed.
    """
    constraints = constraints_of(config)
    beams = 1 if config.num_beams is None else config.num_beams
    name = "force_words_ids" if config.force_words_ids is not None else "constraints"
    if len(constraints) > _MOST_CONSTRAINTS:
        allowed = f"{len(constraints)} constraints; at most {_MOST_CONSTRAINTS}"
        raise InvalidRequestError(name, getattr(config, name), allowed)
    if beams == 1:
        raise InvalidRequestError("num_beams", beams, "must be above 1 for constraints")
    forms = sum(
        len(each.token_ids) if isinstance(each, DisjunctiveConstraint) else 1
        for each in constraints
    )
    if forms * beams > _MOST_CANDIDATES:
        allowed = f"{forms} words and forms for {beams} beams; at most {_MOST_CANDIDATES // beams}"
        raise InvalidRequestError(name, getattr(config, name), allowed)
    if config.do_sample:
        raise InvalidRequestError("do_sample", True, "must be False for constraints")
    if (config.num_beam_groups or 1) > 1:
        allowed = "must be 1 for constraints"
        raise InvalidRequestError("num_beam_groups", config.num_beam_groups, allowed)


def constraints_of(config: Any) -> list[Constraint]:
    """The constraints that a configuration asks for.

    Args:
        config: Has ``constraints`` and ``force_words_ids``: for each a list of ids (the phrase
            must appear) or a list of such lists (one of them must).

    Raises:
        InvalidRequestError: One of them has another form.
    """
    given = config.constraints
    if given is not None and not (
        isinstance(given, list) and given and all(isinstance(each, Constraint) for each in given)
    ):
        raise InvalidRequestError("constraints", given, "a non-empty list of `Constraint` objects")
    return [*(given or ()), *_forced_words(config.force_words_ids)]


def _forced_words(words: Any) -> list[Constraint]:
    if words is None:
        return []
    if not isinstance(words, list) or not words:
        raise InvalidRequestError("force_words_ids", words, "a non-empty list")
    found: list[Constraint] = []
    for word in words:
        nested = isinstance(word, list) and bool(word) and isinstance(word[0], list)
        try:
            found.append(DisjunctiveConstraint(word) if nested else PhrasalConstraint(word))
        except InvalidRequestError as error:
            raise InvalidRequestError("force_words_ids", words, error.allowed) from error
    return found


def _tree(words: list[list[int]]) -> dict[int, Any]:
    """Words as a tree of their tokens, in the order of their first appearance."""
    tree: dict[int, Any] = {}
    places = []
    for word in words:
        place = tree
        for token_id in word:
            place = place.setdefault(token_id, {})
        places.append(place)
    if any(places) or len({id(place) for place in places}) < len(places):
        raise InvalidRequestError("nested_token_ids", words, "no word may begin with another one")
    return tree


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(map(_is_id, value))


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _checked(token_id: object) -> int:
    if not isinstance(token_id, int):
        raise TypeError(f"`token_id` is {token_id!r}: must be an integer")
    return token_id
