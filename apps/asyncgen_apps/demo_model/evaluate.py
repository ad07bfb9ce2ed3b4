"""Measurement of the demo model: ``python -m asyncgen_apps.demo_model.evaluate DIR``."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import torch
import typer
from rich.console import Console

from asyncgen_apps.demo_model.decode import CUT_OFF, AnswerAll, answerer
from asyncgen_apps.demo_model.export import load
from asyncgen_apps.demo_model.quiz import quiz
from asyncgen_apps.demo_model.stories import place_phrase
from asyncgen_apps.demo_model.world import (
    BOYS,
    COLOURS,
    GIRLS,
    OBJECTS,
    PLACES,
    Character,
    article,
    held_out_pairs,
    invented_word,
    named,
    unnamed,
)

if TYPE_CHECKING:
    from asyncgen_apps.demo_model.chat import Message

FRAMES = (
    "Tell me a story about {hero} and {thing} {where}.",
    "Write a short story about {hero} who finds {thing} {where}.",
    "tell me a story about {hero} and {thing} {where}",
    "Can you tell me a story about {hero} with {thing} {where}?",
    "Please write a story about {hero} who loses {thing} {where}.",
)
SAMPLES: tuple[tuple[str, ...], ...] = (
    ("Tell me a story about a fox and a lantern.", "What colour was the lantern?"),
    ("Write a short story about a girl named Mina who finds a red kite at the harbour.",
     "What did Mina find?"),
    ("tell me a story about a boy called Ravi and a drum in the desert", "Make it shorter."),
    ("Story about a dragon who shares a cake",),
    ("Could you write a story about a sleepy owl, please?", "Tell me another one about a bear."),
    ("What is 7 plus 8?", "Which day comes after Tuesday?"),
    ("Make a numbered list of four animals.", "Make a table of three things and their colours."),
    ("Write a Python function that adds 5.", "Thank you!"),
    ('How do you say "summer" in French?', 'How do you say "cat" in Japanese?'),
    ("Who are you?", "What is the capital of Spain?"),
)  # fmt: skip

console = Console()


@dataclass(frozen=True)
class Prompt:
    """A held-out request.

    Attributes:
        text: The request.
        character: The word that must occur.
        thing: The object that must occur.
        place: The place asked for.
    """

    text: str
    character: str
    thing: str
    place: str


@dataclass(frozen=True)
class Score:
    """Counts over the answers to the held-out requests.

    Attributes:
        prompts: Number of requests.
        both: Answers with both the character and the object.
        character: Answers with the character.
        thing: Answers with the object.
        place: Answers with the place.
        ended: Answers that ended by themselves.
    """

    prompts: int
    both: int
    character: int
    thing: int
    place: int
    ended: int


def says(text: str, word: str) -> bool:
    """Tell whether a text holds a word.

    Args:
        text: The text.
        word: The word, in any case.

    Returns:
        True if it occurs as a whole word.
    """
    return re.search(rf"\b{re.escape(word)}\b", text, re.IGNORECASE) is not None


def _character(word: str, rng: random.Random) -> Character:
    if word in GIRLS or word in BOYS:
        return named(word, word in GIRLS)
    return unnamed(word, rng.random() < 0.5)


def _prompt(rng: random.Random, frame: str, hero: Character, thing: str) -> Prompt:
    place = rng.choice(list(PLACES))
    described = f"{rng.choice(COLOURS)} {thing}" if rng.random() < 0.3 else thing
    text = frame.format(hero=hero.intro, thing=article(described), where=place_phrase(place))
    return Prompt(text, hero.word, thing, place)


def held_out_prompts(count: int = 100, seed: int = 11) -> list[Prompt]:
    """Draw requests whose character and object no training document mentions together.

    Args:
        count: Number of requests.
        seed: Seed of the drawing.

    Returns:
        The requests.
    """
    rng = random.Random(seed)
    pairs = rng.sample(held_out_pairs(), count)
    return [
        _prompt(rng, FRAMES[index % len(FRAMES)], _character(word, rng), thing)
        for index, (word, thing) in enumerate(pairs)
    ]


def invented_prompts(count: int = 50, seed: int = 12) -> list[Prompt]:
    """Draw requests about names that were made up for them.

    Args:
        count: Number of requests.
        seed: Seed of the drawing.

    Returns:
        The requests.
    """
    rng = random.Random(seed)
    return [
        _prompt(
            rng,
            FRAMES[index % len(FRAMES)],
            named(invented_word(rng).capitalize(), rng.random() < 0.5),
            rng.choice(OBJECTS),
        )
        for index in range(count)
    ]


def score(prompts: list[Prompt], answers: list[str]) -> Score:
    """Count the words and places that the answers hold.

    Args:
        prompts: The requests.
        answers: Their answers, in the same order.

    Returns:
        The counts.
    """
    pairs = list(zip(prompts, answers, strict=True))
    return Score(
        prompts=len(pairs),
        both=sum(says(a, p.character) and says(a, p.thing) for p, a in pairs),
        character=sum(says(a, p.character) for p, a in pairs),
        thing=sum(says(a, p.thing) for p, a in pairs),
        place=sum(says(a, p.place) for p, a in pairs),
        ended=sum(not a.endswith(CUT_OFF) for _, a in pairs),
    )


def put(answer: AnswerAll, prompts: list[Prompt]) -> Score:
    """Put requests to a model and score it.

    Args:
        answer: The model.
        prompts: The requests.

    Returns:
        The counts.
    """
    replies = answer([[{"role": "user", "content": prompt.text}] for prompt in prompts])
    return score(prompts, replies)


def follow_ups(answer: AnswerAll, prompts: list[Prompt]) -> int:
    """Ask about the object of the story just told, and count the right answers.

    Args:
        answer: The model.
        prompts: Requests; each is asked for with "who finds".

    Returns:
        The number of second answers that name the object.
    """
    conversations: list[list[Message]] = []
    asks: list[str] = []
    for prompt in prompts:
        is_name = prompt.character[0].isupper()
        intro = prompt.character if is_name else article(prompt.character)
        ref = prompt.character if is_name else f"the {prompt.character}"
        text = f"Tell me a story about {intro} who finds {article(prompt.thing)}."
        conversations.append([{"role": "user", "content": text}])
        asks.append(f"What did {ref} find?")
    for messages, story, ask in zip(conversations, answer(conversations), asks, strict=True):
        messages.append({"role": "assistant", "content": story})
        messages.append({"role": "user", "content": ask})
    pairs = zip(prompts, answer(conversations), strict=True)
    return sum(says(reply, prompt.thing) for prompt, reply in pairs)


def samples(answer: AnswerAll) -> list[list[Message]]:
    """Hold the ten conversations of the model card.

    Args:
        answer: The model.

    Returns:
        The conversations.
    """
    conversations: list[list[Message]] = [[] for _ in SAMPLES]
    for turn in range(max(map(len, SAMPLES))):
        open_ones = [index for index, asks in enumerate(SAMPLES) if turn < len(asks)]
        for index in open_ones:
            conversations[index].append({"role": "user", "content": SAMPLES[index][turn]})
        replies = answer([conversations[index] for index in open_ones])
        for index, reply in zip(open_ones, replies, strict=True):
            conversations[index].append({"role": "assistant", "content": reply})
    return conversations


def evaluate(folder: Path, seed: int = 7, count: int = 100) -> dict[str, object]:
    """Measure a checkpoint folder.

    Args:
        folder: The checkpoint.
        seed: Seed of the drawn answers.
        count: Number of held-out requests.

    Returns:
        The figures and the samples, ready for JSON.
    """
    network, tokenizer = load(folder)
    drawn = answerer(network, tokenizer, seed)
    greedy = answerer(network, tokenizer, seed, temperature=0.0)
    prompts = held_out_prompts(count)
    return {
        "held_out_drawn": asdict(put(drawn, prompts)),
        "held_out_greedy": asdict(put(greedy, prompts)),
        "invented_names_drawn": asdict(put(drawn, invented_prompts(count // 2))),
        "follow_ups": {"asked": count // 2, "right": follow_ups(drawn, prompts[: count // 2])},
        "quiz": {"asked": count, "right": quiz(greedy, count)},
        "samples": samples(answerer(network, tokenizer, seed)),
    }


def main(
    folder: Annotated[Path, typer.Argument(help="Checkpoint folder.")],
    out: Annotated[Path, typer.Option(help="File that the figures go to.")] = Path(
        "evaluation.json"
    ),
    seed: Annotated[int, typer.Option(help="Seed of the drawn answers.")] = 7,
    count: Annotated[int, typer.Option(help="Number of held-out requests.")] = 100,
    threads: Annotated[int, typer.Option(help="Processor threads.")] = 1,
) -> None:
    """Measure the demo model.

    Args:
        folder: Checkpoint folder.
        out: File that the figures go to.
        seed: Seed of the drawn answers.
        count: Number of held-out requests.
        threads: Processor threads.
    """
    torch.set_num_threads(threads)
    figures = evaluate(folder, seed, count)
    out.write_text(json.dumps(figures, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    console.print_json(data=figures)


if __name__ == "__main__":
    typer.run(main)
