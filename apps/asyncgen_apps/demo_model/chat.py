"""Conversations: requests for stories, questions about them, and other small talk."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from asyncgen_apps.demo_model import dialogues, facts, phrases, story_parts
from asyncgen_apps.demo_model.stories import (
    Story,
    StoryRequest,
    place_phrase,
    plot_for,
    write_story,
)
from asyncgen_apps.demo_model.world import (
    COLOURS,
    PLACES,
    TRAITS,
    Character,
    article,
    random_character,
    random_object,
)

if TYPE_CHECKING:
    import random

Message = dict[str, str]
"""A chat message with the keys "role" and "content"."""


def _roughen(rng: random.Random, text: str) -> str:
    draw = rng.random()
    if draw < 0.12:
        return text.lower().rstrip(".?!")
    if draw < 0.20:
        return text.rstrip(".?!")
    return text


def _upper_first(text: str) -> str:
    return text[:1].upper() + text[1:]


def name_hero(rng: random.Random, hero: Character) -> tuple[str, Character]:
    """Name the character that a story should be about.

    Args:
        rng: Source of random draws.
        hero: The character.

    Returns:
        The words of the request, and the character as the story must introduce it.
    """
    draw = rng.random()
    if draw < 0.2:
        trait = rng.choice(TRAITS)
        intro = article(f"{trait} {hero.intro.split(' ', 1)[1]}")
        return intro, replace(hero, intro=intro)
    if draw < 0.5 and hero.ref == hero.word:
        return hero.word, hero
    if draw < 0.6:
        return hero.intro.replace(" named ", " called "), hero
    return hero.intro, hero


def draw_request(
    rng: random.Random, asks: tuple[str, ...] = phrases.ASKS
) -> tuple[str, StoryRequest]:
    """Ask for a story.

    Args:
        rng: Source of random draws.
        asks: The phrasings to choose from.

    Returns:
        The text of the request, and what the story must have.
    """
    hero, thing = random_character(rng), random_object(rng)
    subject, hero = name_hero(rng, hero)
    colour = rng.choice(COLOURS) if rng.random() < 0.35 else None
    described = article(f"{colour} {thing}" if colour else thing)
    place = rng.choice(list(PLACES)) if rng.random() < 0.45 else None
    where = f" {place_phrase(place)}" if place else ""
    draw = rng.random()
    plot = None
    request = StoryRequest(hero, thing, place, colour)
    if draw < 0.06:
        helper = random_character(rng)
        other, helper = name_hero(rng, helper)
        if helper.word != hero.word:
            subject, request = (
                f"{subject} and {other}{where}",
                StoryRequest(hero, None, place, helper=helper),
            )
    elif draw < 0.14:
        subject, request = subject + where, StoryRequest(hero, None, place)
    elif draw < 0.20:
        subject, request = described + where, StoryRequest(None, thing, place, colour)
    elif draw < 0.55:
        plot = plot_for(rng, thing)
        verb = rng.choice(phrases.VERBS[plot])
        request = replace(request, plot=plot, colour=None if verb.startswith("and") else colour)
        subject += " " + verb.format(ao=described, noun=thing) + where
    elif draw < 0.62 and place:
        subject = f"{subject}, {described} and {article(place)}"
    elif draw < 0.68:
        subject = f"{described} and {subject}{where}"
    else:
        subject = f"{subject} {rng.choice(('and', 'and', 'with'))} {described}{where}"
    text = rng.choice(asks).format(x=subject)
    return _roughen(rng, text), request


def question(rng: random.Random, story: Story) -> facts.Pair:
    """Ask something about a story just told.

    Args:
        rng: Source of random draws.
        story: The story.

    Returns:
        A question and its answer.
    """
    ask, answer = rng.choice(
        phrases.QUESTIONS[story.plot] if rng.random() < 0.6 else phrases.GENERAL
    )
    colour = f"The {story.thing} was {story.colour}." if story.colour else "The story does not say."
    slots = {
        "h": story.hero.ref,
        "he": story.hero.he,
        "him": story.hero.him,
        "k": story.helper.ref,
        "ao": story.described,
        "noun": story.thing,
        "p": story.place,
        "colour": colour,
        "summary": story.summary,
    }
    filled = _upper_first(answer.format_map(slots))
    return _roughen(rng, _upper_first(ask.format_map(slots))), filled


def small_talk(rng: random.Random) -> facts.Pair:
    """Draw a question that needs no story.

    Args:
        rng: Source of random draws.

    Returns:
        A message and its answer.
    """
    makers: tuple[facts.Maker, ...] = (
        facts.arithmetic,
        facts.arithmetic,
        facts.calendar,
        facts.counting,
        facts.words,
        facts.words,
        facts.listing,
        dialogues.polite,
        dialogues.unknown,
        dialogues.code,
    )
    ask, answer = rng.choice(makers)(rng)
    return _roughen(rng, ask), answer


def _story_turn(rng: random.Random, again: bool, brief: bool) -> tuple[facts.Pair, Story]:
    if rng.random() < 0.06:
        ask, request = _roughen(rng, rng.choice(phrases.OPEN)), StoryRequest()
    else:
        ask, request = draw_request(
            rng, phrases.ANOTHER if again and rng.random() < 0.6 else phrases.ASKS
        )
    story = write_story(rng, request)
    if not brief and rng.random() < 0.04:
        ask = ask.rstrip(".?!") + rng.choice((". One sentence only.", ". Answer in one sentence."))
        brief = True
    return (ask, story.short if brief else story.text), story


def converse(rng: random.Random, turns: int) -> list[Message]:
    """Make up a conversation that opens with a story.

    Args:
        rng: Source of random draws.
        turns: The number of questions and answers.

    Returns:
        The messages.
    """
    messages: list[Message] = []
    draw = rng.random()
    brief, sign = draw < 0.05, 0.05 <= draw < 0.08
    if brief:
        messages.append({"role": "system", "content": rng.choice(phrases.BRIEF)})
    elif sign:
        messages.append({"role": "system", "content": "End every answer with an emoji."})
    elif draw < 0.3:
        messages.append({"role": "system", "content": rng.choice(phrases.SYSTEMS)})
    story: Story | None = None
    for turn in range(turns):
        draw = rng.random()
        if turn == 0 or draw < 0.25:
            (ask, answer), told = _story_turn(rng, turn > 0, brief)
            story = None if answer != told.text else told
        elif draw < 0.85 and story is not None:
            ask, answer = question(rng, story)
        else:
            ask, answer = small_talk(rng)
        if sign and answer[-1] not in "".join(story_parts.EMOJI):
            answer += " " + rng.choice(story_parts.EMOJI)
        messages.append({"role": "user", "content": ask})
        messages.append({"role": "assistant", "content": answer})
    return messages


def chatter(rng: random.Random, turns: int) -> list[Message]:
    """Make up a conversation of small questions only.

    Args:
        rng: Source of random draws.
        turns: The number of questions and answers.

    Returns:
        The messages.
    """
    messages: list[Message] = []
    if rng.random() < 0.15:
        messages.append({"role": "system", "content": rng.choice(phrases.SYSTEMS)})
    for _ in range(turns):
        ask, answer = small_talk(rng)
        messages.append({"role": "user", "content": ask})
        messages.append({"role": "assistant", "content": answer})
    return messages
