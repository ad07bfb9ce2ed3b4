"""Stories: a small grammar that recombines characters, objects, places and turns."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from asyncgen_apps.demo_model import plots, story_parts
from asyncgen_apps.demo_model.story_details import KIND_OF, PLACE_NOTES, notes
from asyncgen_apps.demo_model.world import (
    COLOURS,
    LOOKS,
    PLACES,
    TRAITS,
    Character,
    article,
    random_character,
    random_object,
)

if TYPE_CHECKING:
    import random


@dataclass(frozen=True)
class StoryRequest:
    """Parts that a story must have; those that are drawn are ``None``.

    Attributes:
        hero: The main character.
        thing: The object's noun.
        place: The place's noun.
        colour: The object's colour.
        plot: The plot's name.
        helper: The second character.
    """

    hero: Character | None = None
    thing: str | None = None
    place: str | None = None
    colour: str | None = None
    plot: str | None = None
    helper: Character | None = None


@dataclass(frozen=True)
class Story:
    """Finished story, with the facts that questions may ask about.

    Attributes:
        text: The story.
        hero: The main character.
        helper: The second character.
        thing: The object's noun.
        colour: The object's colour, or nothing when the story does not tell.
        place: Home of the hero, with its preposition.
        plot: The plot's name.
        summary: The story in one sentence.
        short: The story told anew in one sentence, for those who want no more.
        described: The object as first mentioned ("a red kite").
    """

    text: str
    hero: Character
    helper: Character
    thing: str
    colour: str
    place: str
    plot: str
    summary: str
    short: str
    described: str


def capitalise(text: str) -> str:
    """Write the first letter of every sentence in upper case.

    Args:
        text: Sentences in lower case.

    Returns:
        The same text with capital letters at sentence starts.
    """

    def upper(match: re.Match[str]) -> str:
        return match.group(1) + match.group(2).upper()

    return re.sub(r'(^"?|[.!?] "?|\." "?)([^\W\d_])', upper, text)


def place_phrase(place: str) -> str:
    """Put the fitting preposition before a place.

    Args:
        place: The place's noun.

    Returns:
        A phrase such as "at the harbour".
    """
    return f"{PLACES[place]} the {place}"


def _introduce(rng: random.Random, character: Character, trait_chance: float) -> str:
    plain = character.intro.split(" ")[1] not in TRAITS
    if plain and rng.random() < trait_chance:
        trait = rng.choice(TRAITS)
        return article(f"{trait} {character.intro.split(' ', 1)[1]}")
    return character.intro


def _helper(rng: random.Random, hero: Character) -> Character:
    for _ in range(20):
        helper = random_character(rng)
        clear = helper.he != hero.he or rng.random() < 0.15
        if helper.ref != hero.ref and helper.word != hero.word and clear:
            return helper
    return helper


def _slots(
    rng: random.Random, hero: Character, helper: Character, request: StoryRequest
) -> dict[str, str]:
    colour = request.colour or (rng.choice(COLOURS) if rng.random() < 0.7 else "")
    look = rng.choice(LOOKS) if rng.random() < 0.25 else ""
    thing, place = str(request.thing), str(request.place)
    described = " ".join(part for part in (look, colour, thing) if part)
    other = rng.choice([name for name in PLACES if name != place])
    return {
        "intro": _introduce(rng, hero, 0.45),
        "h": hero.ref,
        "he": hero.he,
        "him": hero.him,
        "his": hero.his,
        "kintro": _introduce(rng, helper, 0.2),
        "k": helper.ref,
        "kname": helper.ref.removeprefix("the "),
        "khe": helper.he,
        "khim": helper.him,
        "khis": helper.his,
        "ao": article(described),
        "o": f"the {colour} {thing}" if colour and rng.random() < 0.2 else f"the {thing}",
        "noun": thing,
        "p": place_phrase(place),
        "pl": f"the {place}",
        "q": place_phrase(other),
        "ql": f"the {other}",
        "colour": colour,
    }


def _passing(rng: random.Random) -> dict[str, str]:
    return {
        "day": rng.choice(story_parts.DAYS),
        "time": rng.choice(story_parts.TIMES),
        "weather": rng.choice(story_parts.WEATHERS),
        "mood": rng.choice(story_parts.MOODS),
        "feel": rng.choice(story_parts.FEELINGS),
        "treat": rng.choice(story_parts.TREATS),
        "trouble": rng.choice(story_parts.TROUBLES),
    }


def plot_for(rng: random.Random, thing: str) -> str:
    """Choose a plot that makes sense for an object.

    Args:
        rng: Source of random draws.
        thing: The object's noun.

    Returns:
        The plot's name.
    """
    soft = KIND_OF.get(thing) in {"food", "clothes", "nature"}
    return rng.choice([plot for plot in plots.PLOTS if not (soft and plot == "broken")])


def write_story(rng: random.Random, request: StoryRequest | None = None) -> Story:
    """Make up one story.

    Args:
        rng: Source of random draws.
        request: Parts that the story must have.

    Returns:
        The story.
    """
    request = request or StoryRequest()
    hero = request.hero or random_character(rng)
    helper = request.helper or _helper(rng, hero)
    thing = request.thing or random_object(rng)
    plot = request.plot or plot_for(rng, thing)
    place = request.place or rng.choice(list(PLACES))
    slots = _slots(rng, hero, helper, replace(request, thing=thing, place=place))
    stages = [rng.choice(story_parts.OPENINGS), rng.choice(story_parts.SETTINGS)]
    if rng.random() < 0.4:
        stages.insert(1, PLACE_NOTES[place] + ".")
    turns = [rng.choice(stage) for stage in plots.PLOTS[plot]]
    if plot != "gift" and rng.random() < 0.35:
        turns.insert(1, rng.choice(notes(thing)))
    stages += turns
    endings = sorted(rng.sample(range(len(story_parts.ENDINGS)), rng.choice((1, 1, 2))))
    stages += [story_parts.ENDINGS[ending] for ending in endings]
    sentences = [
        capitalise(stage.format_map(slots | _passing(rng))) for stage in filter(None, stages)
    ]
    if rng.random() < 0.3:
        middle = rng.randint(3, len(sentences) - 2)
        text = " ".join(sentences[:middle]) + "\n\n" + " ".join(sentences[middle:])
    else:
        text = " ".join(sentences)
    if rng.random() < 0.12:
        text += " " + rng.choice(story_parts.EMOJI)
    summary = capitalise(story_parts.SUMMARIES[plot].format_map(slots))
    short = capitalise(story_parts.SHORT[plot].format_map(slots))
    return Story(
        text=text,
        hero=hero,
        helper=helper,
        thing=thing,
        colour=slots["colour"],
        place=slots["p"],
        plot=plot,
        summary=summary,
        short=short,
        described=slots["ao"],
    )
