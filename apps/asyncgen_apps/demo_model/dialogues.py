"""Small dialogues: greetings, the model itself, code, and questions that it cannot answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen_apps.demo_model.world import invented_word

if TYPE_CHECKING:
    import random

    from asyncgen_apps.demo_model.facts import Pair

HELLO = (
    "Hello! What shall I tell you?",
    "Hi! I can tell you a story. Who should it be about?",
    "Hello! Would you like to hear a story?",
    "Good day! I know stories, small sums and lists.",
)
THANKS = ("You are welcome! 😊", "You are welcome!", "Gladly! Would you like another story?")
BYE = ("Goodbye! 👋", "Goodbye, and come back soon!", "See you soon!")
SELF = (
    "I am the asyncgen demo, a very small language model. I tell short stories.",
    "I am a small demo model. I know stories, small sums, days and colours.",
)
CAN = (
    "I can tell short stories, answer questions about them, do small sums and make lists.",
    "I can tell you a story about somebody and something. I can also count and make lists.",
)
UNKNOWN = (
    (
        "I do not know that. I am a very small model, and I only know stories, small sums, days, "
        "colours and lists."
    ),
    "I do not know that. But I can tell you a short story.",
    "Sorry, I do not know that. I only know stories and a few simple facts.",
)
STRANGE = (
    "Who won the election in {x}?",
    "What is the capital of {x}?",
    "Who is the president of {x}?",
    "How does a {x} engine work?",
    "Explain the theory of {x}.",
    "What is the weather in {x} today?",
    "How many people live in {x}?",
    "When was {x} born?",
    "What do you think about {x}?",
    "Who wrote {x}?",
    "What is the best {x} in the world?",
    "How tall is {x}?",
    "Where can I buy {x}?",
    "What does {x} mean?",
    "Translate this law about {x}.",
    "How do I cook {x}?",
    "What is the price of {x}?",
)
TOPICS = (
    "Paris France Germany Berlin London Japan China America Africa Europe Rome Spain physics "
    "music history gravity football Einstein Shakespeare Mozart Hamlet software electricity "
    "computers medicine bitcoin oil pasta pizza Mars Jupiter politics"
).split()
CODE = (
    (
        "a Python function that adds {n}",
        "def add_{n}(x):\n    return x + {n}",
    ),
    (
        "a Python function that multiplies by {n}",
        "def times_{n}(x):\n    return x * {n}",
    ),
    (
        "a Python loop that prints the numbers from 1 to {n}",
        "for i in range(1, {n} + 1):\n    print(i)",
    ),
    (
        "a Python loop that counts down from {n}",
        "for i in range({n}, 0, -1):\n    print(i)",
    ),
    (
        "a Python list of the first {n} squares",
        "squares = [i * i for i in range(1, {n} + 1)]\nprint(squares)",
    ),
    (
        "a Python function that says hello to {w}",
        'def hello():\n    print("Hello, {w}!")\n\n\nhello()',
    ),
    (
        "a Python class called {w}",
        (
            'class {w}:\n    """A small class."""\n\n    def __init__(self, name):\n'
            "        self.name = name"
        ),
    ),
    (
        "a Python dictionary with the key {l}",
        'data = {{"{l}": {n}}}\nprint(data["{l}"])',
    ),
    (
        "an async Python function that sleeps for {n} seconds",
        (
            "import asyncio\n\n\nasync def wait():\n    await asyncio.sleep({n})\n\n\n"
            "asyncio.run(wait())"
        ),
    ),
    (
        "JSON with the name {w} and the age {n}",
        '{{\n  "name": "{w}",\n  "age": {n}\n}}',
    ),
)


def polite(rng: random.Random) -> Pair:
    """Greet, thank, part, or ask the model about itself.

    Args:
        rng: Source of random draws.

    Returns:
        A message and its answer.
    """
    table = (
        (("Hello!", "Hi!", "Hello", "hi", "Good morning!", "Hey there!", "hello there"), HELLO),
        (("Thank you!", "Thanks!", "thank you", "That was nice.", "I liked that story!"), THANKS),
        (("Goodbye!", "Bye!", "bye", "See you!"), BYE),
        (("Who are you?", "What are you?", "What is your name?", "Are you a person?"), SELF),
        (("What can you do?", "What do you know?", "How can you help me?", "Help"), CAN),
    )
    asks, answers = rng.choice(table)
    return rng.choice(asks), rng.choice(answers)


def unknown(rng: random.Random) -> Pair:
    """Ask something from outside the model's world.

    Args:
        rng: Source of random draws.

    Returns:
        A question and the plain answer that it is not known.
    """
    topic = rng.choice(TOPICS) if rng.random() < 0.6 else invented_word(rng).capitalize()
    return rng.choice(STRANGE).format(x=topic), rng.choice(UNKNOWN)


def code(rng: random.Random) -> Pair:
    """Ask for one of a fixed set of code snippets.

    Args:
        rng: Source of random draws.

    Returns:
        A request and a fenced snippet.
    """
    task, snippet = rng.choice(CODE)
    word = invented_word(rng)
    values = {"n": str(rng.randint(2, 20)), "w": word.capitalize(), "l": word}
    request = rng.choice(("Write", "Show me", "Please write", "Give me"))
    language = "json" if task.startswith("JSON") else "python"
    intro = rng.choice(("Here it is:\n\n", "Sure:\n\n", ""))
    answer = f"{intro}```{language}\n{snippet.format(**values)}\n```"
    return f"{request} {task.format(**values)}.", answer
