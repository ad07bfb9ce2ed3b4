"""Small dialogues about facts: sums, days, colours, lists and words."""

from __future__ import annotations

import random
from collections.abc import Callable

from asyncgen_apps.demo_model.world import ANIMALS, COLOURS, OBJECTS, PLACES, article

Pair = tuple[str, str]
"""A question and its answer."""

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
NUMBERS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
    "fifteen sixteen seventeen eighteen nineteen twenty"
).split()


def _pairs(text: str) -> dict[str, str]:
    return {left: right for left, _, right in (pair.partition("/") for pair in text.split())}


OPPOSITES = _pairs(
    "hot/cold big/small day/night happy/sad fast/slow up/down open/closed light/dark old/new "
    "high/low full/empty loud/quiet wet/dry early/late long/short hard/soft rich/poor "
    "left/right strong/weak clean/dirty"
)
TYPICAL = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "a lemon": "yellow",
    "a banana": "yellow",
    "blood": "red",
    "coal": "black",
    "an orange": "orange",
    "chocolate": "brown",
    "a tomato": "red",
    "milk": "white",
    "the sun": "yellow",
    "a frog": "green",
    "a flamingo": "pink",
    "a plum": "purple",
}
MIXES = {
    ("blue", "yellow"): "green",
    ("red", "yellow"): "orange",
    ("red", "blue"): "purple",
    ("red", "white"): "pink",
    ("black", "white"): "grey",
}
WORDS: dict[str, dict[str, str]] = {
    "French": _pairs(
        "cat/chat dog/chien house/maison girl/fille boy/garçon summer/été school/école "
        "star/étoile bread/pain tree/arbre king/roi forest/forêt brother/frère water/eau "
        "moon/lune thanks/merci hello/bonjour island/île"
    ),
    "German": _pairs(
        "cat/Katze dog/Hund house/Haus girl/Mädchen boy/Junge bear/Bär door/Tür "
        "green/grün king/König beautiful/schön bread/Brot tree/Baum bird/Vogel "
        "water/Wasser moon/Mond thanks/danke hello/hallo street/Straße apple/Apfel"
    ),
    "Spanish": _pairs(
        "cat/gato dog/perro house/casa girl/niña boy/niño tree/árbol bird/pájaro "
        "tomorrow/mañana heart/corazón bread/pan water/agua moon/luna king/rey "
        "thanks/gracias hello/hola song/canción sun/sol fish/pez"
    ),
    "Japanese": _pairs(
        "cat/猫 dog/犬 house/家 tree/木 bird/鳥 water/水 moon/月 mountain/山 river/川 fish/魚 "
        "flower/花 sun/太陽 thanks/ありがとう hello/こんにちは fox/きつね bear/くま rain/雨 star/星"
    ),
}
EMOJI = _pairs(
    "fox/🦊 bear/🐻 cat/🐱 dog/🐶 rabbit/🐰 mouse/🐭 frog/🐸 pig/🐷 cow/🐮 lion/🦁 "
    "owl/🦉 bee/🐝 fish/🐟 whale/🐳 penguin/🐧 snail/🐌 unicorn/🦄 panda/🐼 monkey/🐵 "
    "apple/🍎 star/⭐ heart/❤️ sun/☀️ moon/🌙 rainbow/🌈 flower/🌸 tree/🌳 house/🏠 "
    "cake/🎂 balloon/🎈 family/👨‍👩‍👧 rocket/🚀"
)


def arithmetic(rng: random.Random) -> Pair:
    """Ask for a small sum, difference or product.

    Args:
        rng: Source of random draws.

    Returns:
        A question and its answer.
    """
    kind = rng.choice("++--*")
    if kind == "*":
        left, right = rng.randint(1, 10), rng.randint(1, 10)
        word, sign, result = "times", "×", left * right
    elif kind == "+":
        left, right = rng.randint(0, 20), rng.randint(0, 20)
        word, sign, result = "plus", "+", left + right
    else:
        left = rng.randint(0, 20)
        right = rng.randint(0, left)
        word, sign, result = "minus", "-", left - right
    question = rng.choice(
        (
            f"What is {left} {sign} {right}?",
            f"What is {left} {word} {right}?",
            f"{left} {sign} {right} = ?",
            f"How much is {left} {word} {right}?",
            f"Calculate {left} {sign} {right}.",
        )
    )
    equation = f"{left} {sign} {right} = {result}"
    return question, rng.choice((f"{equation}.", f"{left} {word} {right} is {result}."))


def calendar(rng: random.Random) -> Pair:
    """Ask for a neighbouring day or month.

    Args:
        rng: Source of random draws.

    Returns:
        A question and its answer.
    """
    cycle, kind = rng.choice(((DAYS, "day"), (MONTHS, "month")))
    index = rng.randrange(len(cycle))
    word, shift = rng.choice((("after", 1), ("before", -1)))
    other = cycle[(index + shift) % len(cycle)]
    verb = "comes" if rng.random() < 0.7 else "is"
    question = f"Which {kind} {verb} {word} {cycle[index]}?"
    return question, f"{other} comes {word} {cycle[index]}."


def counting(rng: random.Random) -> Pair:
    """Ask to count between two numbers, or for a number as a word.

    Args:
        rng: Source of random draws.

    Returns:
        A question and its answer.
    """
    if rng.random() < 0.4:
        number = rng.randint(0, 20)
        return f"How do you write {number} as a word?", f"{number} is written: {NUMBERS[number]}."
    first = rng.randint(0, 10)
    last = first + rng.randint(2, 9)
    numbers = [str(number) for number in range(first, last + 1)]
    if rng.random() < 0.3:
        return f"Count down from {last} to {first}.", ", ".join(reversed(numbers)) + "."
    return f"Count from {first} to {last}.", ", ".join(numbers) + "."


def words(rng: random.Random) -> Pair:
    """Ask for an opposite, a colour, a foreign word or an emoji.

    Args:
        rng: Source of random draws.

    Returns:
        A question and its answer.
    """
    draw = rng.randrange(5)
    if draw == 0:
        one, other = rng.choice(list(OPPOSITES.items()))
        one, other = (one, other) if rng.random() < 0.5 else (other, one)
        return f"What is the opposite of {one}?", f'The opposite of "{one}" is "{other}".'
    if draw == 1:
        thing, colour = rng.choice(list(TYPICAL.items()))
        verb = rng.choice(("What colour is", "Tell me, what colour is"))
        return f"{verb} {thing}?", f"{thing.capitalize()} is {colour}."
    if draw == 2:
        (one, other), mixed = rng.choice(list(MIXES.items()))
        one, other = (one, other) if rng.random() < 0.5 else (other, one)
        return f"What do you get when you mix {one} and {other}?", f"You get {mixed}."
    if draw == 3:
        thing, sign = rng.choice(list(EMOJI.items()))
        ask = rng.choice(("Show me an emoji of", "Is there an emoji for", "Give me an emoji of"))
        end = "?" if ask.startswith("Is") else "."
        return f"{ask} {article(thing)}{end}", f"Here is {article(thing)}: {sign}"
    language = rng.choice(list(WORDS))
    word, foreign = rng.choice(list(WORDS[language].items()))
    ask = rng.choice((f'How do you say "{word}" in {language}?', f"What is {word} in {language}?"))
    return ask, f'"{word.capitalize()}" in {language} is "{foreign}".'


def listing(rng: random.Random) -> Pair:
    """Ask for a Markdown list or a small table.

    Args:
        rng: Source of random draws.

    Returns:
        A question and its answer.
    """
    groups = {"animals": ANIMALS, "colours": COLOURS, "things": OBJECTS, "places": list(PLACES)}
    kind = rng.choice(list(groups))
    count = rng.randint(2, 6)
    items = rng.sample(groups[kind], count)
    number = rng.choice((str(count), NUMBERS[count]))
    form = rng.randrange(4)
    if form == 0:
        lines = [f"{index}. {item.capitalize()}" for index, item in enumerate(items, 1)]
        return f"Make a numbered list of {number} {kind}.", "\n".join(lines)
    if form == 1:
        colours = rng.choices(COLOURS, k=count)
        things = rng.sample(OBJECTS, count)
        rows = [f"| {thing} | {colour} |" for thing, colour in zip(things, colours, strict=True)]
        table = "\n".join(("| Thing | Colour |", "| --- | --- |", *rows))
        return f"Make a table of {number} things and their colours.", table
    ask = rng.choice(
        (f"List {number} {kind}.", f"Name {number} {kind}.", f"Give me {number} {kind}.")
    )
    lines = [f"- {'**' + item + '**' if form == 2 else item}" for item in items]
    intro = f"Here are {NUMBERS[count]} {kind}:\n\n" if rng.random() < 0.7 else ""
    return ask, intro + "\n".join(lines)


Maker = Callable[[random.Random], Pair]
