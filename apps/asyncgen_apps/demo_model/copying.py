"""Exercises in copying: words to repeat, and questions that the prompt answers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen_apps.demo_model.stories import place_phrase
from asyncgen_apps.demo_model.world import (
    ANIMALS,
    BOYS,
    COLOURS,
    CREATURES,
    GIRLS,
    OBJECTS,
    PLACES,
    WORKERS,
    article,
    invented_word,
    random_character,
    random_object,
)

if TYPE_CHECKING:
    import random

    from asyncgen_apps.demo_model.facts import Pair

CHARACTERS = (*GIRLS, *BOYS, *ANIMALS, *CREATURES, *WORKERS)
SAY_AGAIN = (
    "Repeat after me: {x}",
    "Repeat: {x}",
    "Say this again: {x}",
    "Please repeat these words: {x}",
    "repeat {x}",
)


def _words(rng: random.Random, most: int) -> list[str]:
    """Draw words without ever mixing characters and objects, whose pairs may be held out."""
    pool = rng.choice(
        (
            [*CHARACTERS, *PLACES, *COLOURS],
            [*OBJECTS, *PLACES, *COLOURS],
            [invented_word(rng) for _ in range(24)],
        )
    )
    return rng.sample(pool, rng.randint(1, most))


def repeat(rng: random.Random, most: int = 12) -> Pair:
    """Ask to repeat words, in a row or as a list.

    Args:
        rng: Source of random draws.
        most: The largest number of words.

    Returns:
        A request and its answer.
    """
    words = _words(rng, most)
    if rng.random() < 0.25:
        items = words[:8]
        lines = "\n".join(f"- {word}" for word in items)
        return f"Make a list of {', '.join(items)}.", lines
    text = rng.choice((" ", ", ")).join(words)
    return rng.choice(SAY_AGAIN).format(x=text), text


def recall(rng: random.Random) -> Pair:
    """State facts about some characters, and ask about one of them.

    Args:
        rng: Source of random draws.

    Returns:
        A question and its answer.
    """
    refs = list(dict.fromkeys(random_character(rng).ref for _ in range(rng.randint(2, 5))))
    kind = rng.randrange(3)
    if kind == 0:
        told = [f"{ref} has {article(random_object(rng))}." for ref in refs]
        ask = "What does {x} have?"
    elif kind == 1:
        told = [f"{ref} lives {place_phrase(rng.choice(list(PLACES)))}." for ref in refs]
        ask = "Where does {x} live?"
    else:
        told = [f"{ref} likes {rng.choice(COLOURS)}." for ref in refs]
        ask = "Which colour does {x} like?"
    told = [line[0].upper() + line[1:] for line in told]
    index = rng.randrange(len(refs))
    return " ".join((*told, ask.format(x=refs[index]))), told[index]
