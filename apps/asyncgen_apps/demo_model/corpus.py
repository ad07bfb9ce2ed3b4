"""The corpus: an endless stream of documents and training rows, drawn from a seed."""

from __future__ import annotations

import random
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from asyncgen_apps.demo_model.chat import Message, chatter, converse
from asyncgen_apps.demo_model.copying import recall, repeat
from asyncgen_apps.demo_model.stories import write_story
from asyncgen_apps.demo_model.world import mentions_held_out

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenizers import Tokenizer

BOS, END, PAD, UNK = "<|bos|>", "<|end|>", "<|pad|>", "<|unk|>"
ROLES = ("system", "user", "assistant")
PROMPT_WEIGHT = 0.1
"""Loss weight of tokens that the model only reads; those that it must say weigh 1."""


PRACTICE = 0.08
"""The share of exercises in copying among the short documents."""


class Length(StrEnum):
    """Length of the documents of a training row."""

    DRILL = "drill"
    SHORT = "short"
    MEDIUM = "medium"
    LONG = "long"


ROW_TOKENS = {
    Length.DRILL: 64,
    Length.SHORT: 256,
    Length.MEDIUM: 512,
    Length.LONG: 1024,
}
SHORT_ANSWER = 48
"""Longest answer, in tokens, that weighs more in the second part of the training."""
SHORT_ANSWER_WEIGHT = 4.0
LATE_SHARE = {Length.SHORT: 0.5, Length.MEDIUM: 0.4, Length.LONG: 0.1}
ROW_SHARE = {Length.SHORT: 0.62, Length.MEDIUM: 0.26, Length.LONG: 0.12}


@dataclass(frozen=True)
class Segment:
    """Part of a document.

    Attributes:
        text: Its text, special tokens included.
        spoken: True if the model learns to say it.
    """

    text: str
    spoken: bool


Document = tuple[Segment, ...]


def render(messages: list[Message]) -> Document:
    """Write a conversation in the chat format.

    Args:
        messages: The messages in order.

    Returns:
        The document, beginning with the token that starts every text.
    """
    segments = [Segment(BOS, False)]
    for message in messages:
        segments.append(Segment(f"<|{message['role']}|>", False))
        segments.append(Segment(message["content"] + END, message["role"] == "assistant"))
    return tuple(segments)


def text_of(document: Document) -> str:
    """Join a document's segments.

    Args:
        document: The document.

    Returns:
        Its whole text, special tokens included.
    """
    return "".join(segment.text for segment in document)


def _exercises(rng: random.Random) -> list[Message]:
    messages: list[Message] = []
    for _ in range(rng.randint(1, 3)):
        ask, answer = rng.choice((repeat, recall))(rng)
        messages.append({"role": "user", "content": ask})
        messages.append({"role": "assistant", "content": answer})
    return messages


def _drill(rng: random.Random) -> list[Message]:
    ask, answer = repeat(rng, most=4) if rng.random() < 0.8 else recall(rng)
    return [{"role": "user", "content": ask}, {"role": "assistant", "content": answer}]


def _draft(rng: random.Random, length: Length, late: bool) -> Document:
    if length is Length.DRILL:
        return render(_drill(rng))
    if length is Length.SHORT and rng.random() < PRACTICE:
        return render(_exercises(rng))
    draw = rng.random()
    if late and length is Length.SHORT and draw > 0.3:
        return render(chatter(rng, rng.choice((1, 2, 3))))
    if length is Length.SHORT:
        if draw < 0.10:
            return (Segment(BOS, False), Segment(write_story(rng).text + END, True))
        if draw < 0.72:
            return render(converse(rng, 1))
        return render(chatter(rng, rng.choice((1, 1, 2, 3))))
    if length is Length.MEDIUM:
        return render(converse(rng, rng.choice((2, 2, 2, 3, 4))))
    return render(converse(rng, rng.randint(6, 14)))


def document(rng: random.Random, length: Length, late: bool = False) -> Document:
    """Draw one document that mentions no held-out pair.

    Args:
        rng: Source of random draws.
        length: Length of the document.
        late: True draws more small questions, as in the second part of the training.

    Returns:
        The document.
    """
    while True:
        draft = _draft(rng, length, late)
        if not mentions_held_out(text_of(draft)):
            return draft


def documents(seed: int) -> Iterator[Document]:
    """Stream documents in the proportions of training.

    Args:
        seed: The seed; the same seed gives the same stream.

    Yields:
        Documents without end.
    """
    rng = random.Random(f"documents:{seed}")
    shapes, shares = list(ROW_SHARE), list(ROW_SHARE.values())
    while True:
        yield document(rng, rng.choices(shapes, shares)[0])


def encode(
    tokenizer: Tokenizer, drawn: Document, late: bool = False
) -> tuple[list[int], list[float]]:
    """Turn a document into token ids and loss weights.

    Args:
        tokenizer: The tokenizer.
        drawn: The document.
        late: True if short answers weigh more.

    Returns:
        The ids and the weight of each id as a target.
    """
    ids: list[int] = []
    weights: list[float] = []
    for segment in drawn:
        piece = tokenizer.encode(segment.text, add_special_tokens=False).ids
        ids += piece
        weight = 1.0 if segment.spoken else PROMPT_WEIGHT
        if late and segment.spoken and len(piece) <= SHORT_ANSWER:
            weight = SHORT_ANSWER_WEIGHT
        weights += [weight] * len(piece)
    return ids, weights


def row(
    tokenizer: Tokenizer, rng: random.Random, length: Length, late: bool = False
) -> tuple[list[int], list[float]]:
    """Fill one training row with whole documents; only the last is cut off.

    Args:
        tokenizer: The tokenizer.
        rng: Source of random draws.
        length: Length of the row and its documents.
        late: True for a row of the second part of the training.

    Returns:
        The ids and weights, one more than the row's tokens.
    """
    size = ROW_TOKENS[length] + 1
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < size:
        more_ids, more_weights = encode(tokenizer, document(rng, length, late), late)
        ids += more_ids
        weights += more_weights
    return ids[:size], weights[:size]


def length_of_step(seed: int, step: int, drills: int = 0, late: bool = False) -> Length:
    """Return the length of the rows of a training step.

    Args:
        seed: The run's seed.
        step: The step's number.
        drills: Number of steps, at the start, that only drill copying.
        late: True for a step of the second part of the training.

    Returns:
        The length, drawn in the fixed proportions.
    """
    if step < drills:
        return Length.DRILL
    rng = random.Random(f"shape:{seed}:{step}")
    shares = LATE_SHARE if late else ROW_SHARE
    return rng.choices(list(shares), list(shares.values()))[0]
