"""Processors that change a few scores of a row, run over all rows that have them at once.

Each edit is laid out for the rows that have one kind of processor, and again only when the rows
change. It writes in place, to the places it means alone: all other scores stay as they are, bit
for bit. The arithmetic is that of the processors' own functions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import torch

from asyncgen.engine.sampling.seen_tokens import BiasRounds, RepeatedNGrams, SeenTokens
from asyncgen.generation.logits import (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    FrequencyPenaltyLogitsProcessor,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PresencePenaltyLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)
from asyncgen.generation.logits.lengths import growth, rise
from asyncgen.generation.logits.penalties import penalize_frequency, penalize_presence, weaken
from asyncgen.transfer import to_device

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor

    from asyncgen.engine.sampling.scores import BatchScores

__all__ = ["EDITS", "Edit", "Part"]


class Part:
    """A processor of one row.

    Attributes:
        row: Number of the row in the batch.
        processor: The processor.
        memory: What is kept of the row's sequence from step to step, the processor's own.
    """

    __slots__ = ("memory", "processor", "row")

    def __init__(self, row: int, processor: Any, memory: dict[str, Any]) -> None:
        """Join them."""
        self.row = row
        self.processor = processor
        self.memory = memory


class Edit(Protocol):
    """Processors of one kind, one or none a row."""

    def __init__(self, parts: list[Part], scores: BatchScores) -> None:
        """Lay the parameters out."""

    def __call__(self, scores: BatchScores) -> None:
        """Change the scores of one step."""


class _Ban:
    """Sets scores to -inf."""

    def __init__(self, parts: list[Part], scores: BatchScores) -> None:
        self._parts = parts

    def __call__(self, scores: BatchScores) -> None:
        """Ban what each row bans at this step."""
        places: list[int] = []
        for part in self._parts:
            with scores.guarded(part.row):
                offset = part.row * scores.size
                places += [offset + token for token in self._banned(part, scores)]
        if places:
            # An assignment would send the number, and wait for the device.
            scores.flat.index_fill_(0, scores.tensor(places), -torch.inf)

    def _banned(self, part: Part, scores: BatchScores) -> Any:
        raise AssertionError


class _BanNGrams(_Ban):
    def _banned(self, part: Part, scores: BatchScores) -> Any:
        grams = part.memory.get("grams")
        if grams is None:
            grams = part.memory["grams"] = RepeatedNGrams(part.processor.ngram_size)
        return grams.banned(scores.rows[part.row].token_ids)


class _BanAlways(_Ban):
    def __init__(self, parts: list[Part], scores: BatchScores) -> None:
        super().__init__(parts, scores)
        self._places = scores.tensor(
            [
                part.row * scores.size + token
                for part in parts
                for token in part.processor.suppress_tokens.below(scores.size)
            ]
        )

    def __call__(self, scores: BatchScores) -> None:
        """Ban the same tokens at every step."""
        scores.flat.index_fill_(0, self._places, -torch.inf)


class _BanAtBegin(_Ban):
    def _banned(self, part: Part, scores: BatchScores) -> Any:
        processor = part.processor
        if scores.rows[part.row].position != processor.begin_index:
            return ()
        return processor.begin_suppress_tokens.below(scores.size)


class _BanEnds(_Ban):
    """Of rows that are too short, whichever way that is counted."""

    def _banned(self, part: Part, scores: BatchScores) -> Any:
        processor, length = part.processor, scores.rows[part.row].position
        if isinstance(processor, MinLengthLogitsProcessor):
            short = length < processor.min_length
        else:
            short = length - processor.prompt_length_to_skip < processor.min_new_tokens
        return processor.eos_token_id.below(scores.size) if short else ()


class _Force:
    """Leaves only some tokens, at one length."""

    def __init__(self, parts: list[Part], scores: BatchScores) -> None:
        self._parts = parts

    def __call__(self, scores: BatchScores) -> None:
        """Force the tokens of rows that are where it is due."""
        for part in self._parts:
            length, processor = scores.rows[part.row].position, part.processor
            if isinstance(processor, ForcedBOSTokenLogitsProcessor):
                due, tokens = length == 1, [processor.bos_token_id]
            else:
                due = length == processor.max_length - 1
                tokens = processor.eos_token_id.tolist() if due else []
            if due:
                row = scores.values[part.row].fill_(-torch.inf)
                row.index_fill_(0, scores.tensor(tokens), 0.0)


class _Bias:
    """Adds biases to single tokens and to tokens that complete a sequence."""

    def __init__(self, parts: list[Part], scores: BatchScores) -> None:
        self._parts = parts
        for part in parts:
            if "biases" not in part.memory:
                part.memory["biases"] = BiasRounds(part.processor.pairs)

    def __call__(self, scores: BatchScores) -> None:
        """Add what applies to each row, in rounds."""
        rounds: list[tuple[list[int], list[float]]] = []
        for part in self._parts:
            offset = part.row * scores.size
            found = part.memory["biases"].rounds(scores.rows[part.row].token_ids)
            for number, pairs in enumerate(found):
                if number == len(rounds):
                    rounds.append(([], []))
                rounds[number][0].extend(offset + token for token, _ in pairs)
                rounds[number][1].extend(bias for _, bias in pairs)
        for places, biases in rounds:
            if places:
                added = to_device(torch.tensor(biases, dtype=scores.flat.dtype), scores.flat.device)
                scores.flat.index_add_(0, scores.tensor(places), added)


class _Decay:
    """Raises the scores of end tokens ever more."""

    def __init__(self, parts: list[Part], scores: BatchScores) -> None:
        self._parts = parts
        self._ends = [part.processor.eos_token_id.tolist() for part in parts]

    def __call__(self, scores: BatchScores) -> None:
        """Raise those of rows that are over their time."""
        places: list[int] = []
        shares: list[float] = []
        for part, ends in zip(self._parts, self._ends, strict=True):
            processor = part.processor
            overdue = scores.rows[part.row].position - processor.regulation_start
            if overdue > 0:
                with scores.guarded(part.row):
                    share = float(growth(processor.regulation_factor, overdue))
                    places += [part.row * scores.size + token for token in ends]
                    shares += [share] * len(ends)
        if places:
            where = scores.tensor(places)
            share_column = to_device(
                torch.tensor(shares, dtype=scores.flat.dtype), scores.flat.device
            )
            scores.flat.index_add_(0, where, rise(scores.flat[where], share_column))


class _Penalize:
    """Changes the scores of tokens that are already there."""

    def __init__(self, parts: list[Part], scores: BatchScores) -> None:
        self._parts = parts
        device = scores.flat.device
        penalties = [part.processor.penalty for part in parts]
        self._penalties = to_device(torch.tensor(penalties, dtype=torch.float64), device)
        self._offsets = scores.tensor([part.row * scores.size for part in parts])
        for part in parts:
            if "seen" not in part.memory:
                part.memory["seen"] = SeenTokens(self._start(part), scores.size)
        self._seen: list[SeenTokens] = [part.memory["seen"] for part in parts]

    def __call__(self, scores: BatchScores) -> None:
        """Penalise what each row has."""
        for part, seen in zip(self._parts, self._seen, strict=True):
            with scores.guarded(part.row):
                seen.read(scores.rows[part.row].token_ids)
        lengths = scores.tensor([len(seen.token_ids) for seen in self._seen])
        tokens = b"".join([seen.token_ids for seen in self._seen])
        if not tokens:
            return
        device = scores.flat.device
        total = len(tokens) // 8
        places = to_device(torch.frombuffer(bytearray(tokens), dtype=torch.int64), device)
        places += self._offsets.repeat_interleave(lengths, output_size=total)
        penalties = self._penalties.repeat_interleave(lengths, output_size=total)
        counts = b"".join([seen.counts for seen in self._seen])
        occurring = to_device(torch.frombuffer(bytearray(counts), dtype=torch.float32), device)
        scores.flat[places] = self._changed(scores.flat[places], occurring, penalties)

    def _start(self, part: Part) -> int:
        return int(part.processor.prompt_length)

    def _changed(self, scores: Tensor, counts: Tensor, penalties: Tensor) -> Tensor:
        raise AssertionError


class _PenalizeRepetition(_Penalize):
    def _start(self, part: Part) -> int:
        return part.processor.prompt_ignore_length or 0

    def _changed(self, scores: Tensor, counts: Tensor, penalties: Tensor) -> Tensor:
        return weaken(scores, penalties)


class _PenalizePresence(_Penalize):
    def _changed(self, scores: Tensor, counts: Tensor, penalties: Tensor) -> Tensor:
        return penalize_presence(scores, counts, penalties)


class _PenalizeFrequency(_Penalize):
    def _changed(self, scores: Tensor, counts: Tensor, penalties: Tensor) -> Tensor:
        return penalize_frequency(scores, counts, penalties)


def _always(processor: Any, size: int) -> bool:
    return True


def _own_ends(processor: Any, size: int) -> bool:
    ends = processor.eos_token_id.tolist()
    # Places beyond a row would be its neighbour's; the processor itself raises.
    return all(0 <= token < size for token in ends)


EDITS: dict[type, tuple[type, Callable[[Any, int], bool]]] = {
    SequenceBiasLogitsProcessor: (
        _Bias,
        lambda each, size: all(token < size for tokens, _ in each.pairs for token in tokens),
    ),
    NoBadWordsLogitsProcessor: (
        _Bias,
        lambda each, size: all(token < size for tokens, _ in each.pairs for token in tokens),
    ),
    RepetitionPenaltyLogitsProcessor: (
        _PenalizeRepetition,
        lambda each, size: not isinstance(each.prompt_ignore_length, torch.Tensor),
    ),
    NoRepeatNGramLogitsProcessor: (_BanNGrams, _always),
    MinLengthLogitsProcessor: (_BanEnds, _always),
    MinNewTokensLengthLogitsProcessor: (_BanEnds, _always),
    ForcedBOSTokenLogitsProcessor: (
        _Force,
        lambda each, size: isinstance(each.bos_token_id, int) and 0 <= each.bos_token_id < size,
    ),
    ForcedEOSTokenLogitsProcessor: (_Force, _own_ends),
    ExponentialDecayLengthPenalty: (_Decay, _own_ends),
    SuppressTokensLogitsProcessor: (_BanAlways, _always),
    SuppressTokensAtBeginLogitsProcessor: (_BanAtBegin, _always),
    PresencePenaltyLogitsProcessor: (_PenalizePresence, _always),
    FrequencyPenaltyLogitsProcessor: (_PenalizeFrequency, _always),
}
"""The kinds, each with its edit and a question: whether it can do what this processor does."""
