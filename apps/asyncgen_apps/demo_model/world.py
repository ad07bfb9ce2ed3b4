"""The vocabulary of the demo model's world, and which combinations are held out."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random

HELD_OUT_ONE_IN = 40
"""One (character, object) pair in this many never occurs in the corpus."""

GIRLS = (
    "Mina Anna Lily Rosa Clara Emma Ida Nora Sofia Zoe Maya Lucy Ella Hana Olga Vera Ruth Greta "
    "Elin Amira Leila Daisy Freya Ivy Jane Kate Lena Mia Nina Opal Petra Quinn Sara Tara Una "
    "Wendy Yuki Zara Alice Bella Zoë Chloé Inés"
).split()
BOYS = (
    "Tom Ben Max Leo Sam Finn Oscar Hugo Karl Otto Paul Omar Ravi Kenji Ivan Jonas Emil Noah "
    "Adam Boris Dan Eli Felix George Henry Isaac Jack Kofi Luca Milo Nils Pedro Rolf Simon Theo "
    "Umar Victor Will Yusuf Zack José André Jürgen"
).split()
ANIMALS = (
    "fox bear rabbit mouse owl cat dog hen duck goose pig cow horse goat sheep wolf deer otter "
    "beaver badger hedgehog squirrel frog toad turtle snail crow robin sparrow swan penguin seal "
    "whale dolphin crab octopus lion tiger elephant monkey giraffe zebra camel panda koala "
    "kangaroo parrot eagle bat mole lizard spider bee butterfly ant donkey hamster kitten puppy "
    "lamb raccoon pony"
).split()
CREATURES = "dragon robot unicorn giant fairy troll wizard ghost mermaid dwarf elf snowman".split()
WORKERS = (
    "baker sailor gardener farmer painter teacher doctor miller tailor carpenter shepherd "
    "fisherman cook king queen prince princess clockmaker musician postman"
).split()
FEMALE_WORKERS = frozenset({"queen", "princess"})
MALE_WORKERS = frozenset({"king", "prince", "fisherman", "postman", "wizard"})

OBJECTS = (
    "kite lantern key ball drum bell book map boat basket hat scarf coat umbrella ladder rope "
    "bucket broom cup bowl spoon teapot candle lamp mirror clock watch compass telescope whistle "
    "flute guitar violin trumpet piano box bag button ribbon feather shell stone pearl coin ring "
    "crown necklace doll puppet balloon wagon cart wheel bicycle sled skate shoe boot glove "
    "blanket pillow quilt letter stamp pencil brush painting pumpkin apple pear cherry melon "
    "cake pie cookie loaf honeycomb flower rose tulip sunflower acorn pinecone leaf seed egg "
    "nest anchor sail oar net jar bottle hammer needle thimble marble kettle"
).split()
PLACES: dict[str, str] = {
    **dict.fromkeys(
        (
            "forest garden village kitchen barn castle valley meadow cave library attic school "
            "market park orchard jungle desert tower mill cottage swamp town cellar museum field"
        ).split(),
        "in",
    ),
    **dict.fromkeys(
        "harbour beach station lake waterfall bakery lighthouse farm river bridge well".split(),
        "at",
    ),
    **dict.fromkeys("hill island mountain roof shore train ship cliff".split(), "on"),
}
COLOURS = "red blue green yellow white black purple orange pink brown golden silver".split()
TRAITS = (
    "little kind brave clever quiet cheerful curious young gentle shy patient careful busy "
    "friendly honest sleepy funny"
).split()
LOOKS = "small big old new shiny pretty round heavy tiny wooden".split()

ONSETS = "b d f g k l m n p r s t v z br dr gr kr pl tr sh th ch".split()
VOWELS = "a e i o u ai ea oo".split()
CODAS = ["", "", "", "n", "l", "r", "s", "m", "k", "x", "rn", "lt", "nd"]

CHARACTER_WORDS = frozenset((*GIRLS, *BOYS, *ANIMALS, *CREATURES, *WORKERS))
OBJECT_WORDS = frozenset(OBJECTS)
_WORD = re.compile(r"[^\W\d_]+")


@dataclass(frozen=True)
class Character:
    """Somebody a story can be about.

    Attributes:
        word: The telling word: a name or a kind of being.
        intro: First mention of the character ("a girl named Mina", "a fox").
        ref: Later mentions ("Mina", "the fox").
        he: Subject pronoun.
        him: Object pronoun.
        his: Possessive pronoun.
    """

    word: str
    intro: str
    ref: str
    he: str
    him: str
    his: str


def article(phrase: str) -> str:
    """Put the fitting indefinite article before a phrase.

    Args:
        phrase: A noun phrase without an article.

    Returns:
        The phrase with "a" or "an" before it.
    """
    like_you, silent = phrase.startswith(("uni", "eu", "us")), phrase.startswith("honest")
    vowel = silent or (phrase[0] in "aeiou" and not like_you)
    return f"{'an' if vowel else 'a'} {phrase}"


def invented_word(rng: random.Random) -> str:
    """Spell a word that no dictionary holds.

    Args:
        rng: Source of random draws.

    Returns:
        A pronounceable word in lower case.
    """
    count = rng.choice((2, 2, 3))
    syllables = (rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(count))
    return "".join(syllables) + rng.choice(CODAS)


def _pronouns(female: bool) -> tuple[str, str, str]:
    return ("she", "her", "her") if female else ("he", "him", "his")


def named(name: str, female: bool) -> Character:
    """Make a child with a name.

    Args:
        name: The name.
        female: True for a girl.

    Returns:
        The character.
    """
    intro = f"a {'girl' if female else 'boy'} named {name}"
    return Character(name, intro, name, *_pronouns(female))


def unnamed(kind: str, female: bool, name: str = "") -> Character:
    """Make an animal, a creature or a grown-up known by trade.

    Args:
        kind: Kind of character.
        female: True if it is called "she".
        name: A name of its own, or nothing.

    Returns:
        The character.
    """
    female = kind in FEMALE_WORKERS or (female and kind not in MALE_WORKERS)
    intro = article(kind) + (f" named {name}" if name else "")
    return Character(kind, intro, name or f"the {kind}", *_pronouns(female))


def random_character(rng: random.Random) -> Character:
    """Draw a character of any sort.

    Args:
        rng: Source of random draws.

    Returns:
        The character.
    """
    draw, female = rng.random(), rng.random() < 0.5
    if draw < 0.26:
        return named(rng.choice(GIRLS if female else BOYS), female)
    if draw < 0.40:
        return named(invented_word(rng).capitalize(), female)
    if draw < 0.72:
        return unnamed(rng.choice(ANIMALS), female)
    if draw < 0.82:
        return unnamed(rng.choice(CREATURES), female)
    if draw < 0.92:
        return unnamed(rng.choice(WORKERS), female)
    name = invented_word(rng).capitalize() if rng.random() < 0.5 else rng.choice(GIRLS + BOYS)
    female = name in GIRLS or (female and name not in BOYS)
    return unnamed(rng.choice(ANIMALS), female, name)


def random_object(rng: random.Random) -> str:
    """Draw an object, now and then one with an invented name.

    Args:
        rng: Source of random draws.

    Returns:
        The object's noun.
    """
    return invented_word(rng) if rng.random() < 0.06 else rng.choice(OBJECTS)


@lru_cache(maxsize=65536)
def held_out(character: str, thing: str) -> bool:
    """Tell whether a pair is kept out of the corpus, wherever it would meet.

    Args:
        character: The character's telling word.
        thing: The object's noun.

    Returns:
        Whether no document may mention both.
    """
    digest = hashlib.sha256(f"{character}|{thing}".encode()).digest()
    return int.from_bytes(digest[:4], "big") % HELD_OUT_ONE_IN == 0


def held_out_pairs() -> list[tuple[str, str]]:
    """List every pair that is kept out of the corpus.

    Returns:
        Sorted (character, object) pairs.
    """
    pairs = product(sorted(CHARACTER_WORDS), sorted(OBJECT_WORDS))
    return [pair for pair in pairs if held_out(*pair)]


def mentions_held_out(text: str) -> bool:
    """Tell whether a text mentions both halves of any held-out pair.

    Args:
        text: Any text.

    Returns:
        Whether the text must stay out of the corpus.
    """
    words = set(_WORD.findall(text))
    words |= {word.lower() for word in words}
    words |= {word.capitalize() for word in words}
    pairs = product(words & CHARACTER_WORDS, words & OBJECT_WORDS)
    return any(held_out(*pair) for pair in pairs)
