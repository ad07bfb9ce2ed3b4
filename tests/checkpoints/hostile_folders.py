"""Folders whose template, tokenizer or decoder is made to cost as much as is allowed, and more.

``python -m tests.checkpoints.hostile_folders PLACE NAME DOOR SECONDS`` opens the folder of that
name, asks it what is hostile through a door beside a stream of another engine, and closes both
amid it. It prints what it saw as JSON: a process of its own, since what hangs is ended with it.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
import threading
import time
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from asyncgen.errors import AsyncgenError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

State = dict[str, Any]

DEMO: Final = Path(__file__).parents[2] / "asyncgen" / "demo"
SECRET: Final = "private words of the prompt"
PRIME: Final = 2**61 - 1
DIGITS: Final = {
    "Cohere": r"\d{1,3}(?=(?:\d{3})*\b)",
    "SuperBPE": r"(?=(\d{3})+(?!\d))",
    "AFMoE": r"\p{N}{1,3}(?=(?:\p{N}{3})*(?!\p{N}))",
}


@dataclass(frozen=True)
class Hostile:
    """A folder, and what it is asked.

    Attributes:
        template: Chat template; ``None`` for that of the demo model.
        change: Changes the content of ``tokenizer.json``.
        text: What the message says.
        token: Token whose ids are decoded.
        refused: What the error says of a folder that is not opened.
    """

    template: str | None = None
    change: Callable[[State], object] = lambda state: None
    text: str = "Hello."
    token: str = "a"
    refused: str = ""


def loop(body: str, start: str = "") -> str:
    return f"{start}{{% for i in range(99999) %}}{{% set x = {body} %}}{{% endfor %}}"


TEMPLATES: Final[dict[str, str]] = {
    "loops": "{% for a in range(999) %}{% for b in range(999) %}{% set x = a * b %}{% endfor %}"
    "{% endfor %}",
    "growing texts": "{% set n = namespace(t='x') %}{% for i in range(24) %}"
    "{% set n.t = n.t ~ n.t %}{% endfor %}{{ n.t }}",
    "urlize": "{{ ('(' * 9999)|urlize }}",
    "wordwrap": "{{ ('x' * 8000)|wordwrap(1) }}" * 2,
    "unique": f"{{{{ range(0, {3900 * PRIME}, {PRIME})|list|unique|list }}}}",
    "tojson": "{{ ([1] * 300000)|tojson|length }}" * 3,
    "tojson of large integers": "{{ ([7 ** 2000] * 5000)|tojson|length }}",
    "replace": "{{ ('x' * 600000).replace('x', 'yyyyyyy')|length }}" * 3,
    "format": "{{ ('{0:1}' * 400000).format(1)|length }}",
    "format by width": "{{ '%3000000d' % 1 }}",
    "join": "{{ ['<'|safe, '<']|list|join }}{{ (['<'|safe, '<'] * 300000)|join|length }}",
    "sort": "{{ (range(60000)|map('string')|list)|sort|length }}",
    "slices": loop("a[::-1]", "{% set a = 'x' * 300 %}"),
    "translate": "{{ ('x' * 5000000).translate({120: 'y'})|length }}",
    "integers": loop("n // m", "{% set n = 7 ** 20000 %}{% set m = 7 ** 10000 %}"),
    "namespaces": "{% set n = namespace(a=0) %}" + loop("0") + "{% set n.a = 1 %}" * 20,
    "macros": "{% macro f(n) %}{% for i in range(9) %}{{ f(n - 1) if n }}{% endfor %}"
    "{% endmacro %}{{ f(9) }}",
    "a macro without an end": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "raise_exception": "{{ raise_exception('x' * 3000000) }}",
    "raise_exception with the prompt": "{{ raise_exception('no') }}",
    "dates": "{{ strftime_now('%c' * 1000000)|length }}",
    "conditions": "{{ ('x' * 900000)|select('none')|list|length }}",
    "a text of the allowed size": "x" * 131_000,
    "expressions of the allowed number": "{{ x }}" * 2600,
    "blocks": "".join(f"{{% block b{i} %}}x{{% endblock %}}" for i in range(500)),
    "functions": "".join(f"{{% macro f{i}(a) %}}x{{% endmacro %}}" for i in range(400)),
    "includes": "{% include 'a' %}" * 2000,
    "long calls": "{% if tools %}{% for m in messages %}{{ m.role }}{{ m.tool_calls|tojson }}"
    "{{ '{\"name\":' * 300000 }}{% endfor %}{% endif %}",
    "slow calls": "{% for i in range(99999) %}{% for j in range(20) %}{% set x = i * j %}"
    "{% endfor %}{% endfor %}",
    "what is given, often": "{% for m in messages * 9 %}{{ m.content|upper|lower }}{% endfor %}",
    "JSON of what is given": "{{ messages|tojson }}" * 9,
}
"""Templates by what they spend."""


def replaced(old: str, new: str) -> State:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


def split(pattern: State) -> State:
    return {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False}


def chain(name: str, parts: list[State]) -> State:
    return {"type": "Sequence", name: parts}


def normalised(*parts: State) -> Callable[[State], object]:
    return lambda state: state.update(normalizer=chain("normalizers", list(parts)))


def cut(*parts: State) -> Callable[[State], object]:
    return lambda state: state.update(pre_tokenizer=chain("pretokenizers", list(parts)))


def decoded(*parts: State) -> Callable[[State], object]:
    return lambda state: state.update(decoder=chain("decoders", list(parts)))


def modelled(kind: str, words: list[str], **more: Any) -> Callable[[State], object]:
    """Put another model in the place of BPE, with the special tokens of the demo model."""

    def change(state: State) -> None:
        tokens = [token["content"] for token in state["added_tokens"]] + words
        scored = [[token, -1.0] for token in tokens]
        ids = {token: number for number, token in enumerate(tokens)}
        vocab: Any = scored if kind == "Unigram" else ids
        state.update(normalizer=None, decoder=None, post_processor=None)
        state["pre_tokenizer"] = None if kind == "Unigram" else {"type": "WhitespaceSplit"}
        state["model"] = {"type": kind, **more, "vocab": vocab}

    return change


def word_pieces(prefix: str = "##", longest: int = 128, word: str = "") -> Callable[[State], Any]:
    return modelled(
        "WordPiece",
        ["a", f"{prefix}a", *([word] if word else [])],
        unk_token="<|unk|>",
        continuing_subword_prefix=prefix,
        max_input_chars_per_word=longest,
    )


def added(tokens: list[State]) -> Callable[[State], object]:
    def change(state: State) -> None:
        flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
        first = len(state["model"]["vocab"])
        state["added_tokens"] += [
            {"id": first + number, **flags, **token} for number, token in enumerate(tokens)
        ]

    return change


def framed(count: int) -> Callable[[State], object]:
    """Put so many ids before each text."""

    def change(state: State) -> None:
        ids = {"id": "<|bos|>", "ids": [1] * count, "tokens": ["<|bos|>"] * count}
        state["post_processor"]["special_tokens"]["<|bos|>"] = ids

    return change


_TURNED: Final = [replaced("a", "b"), replaced("b", "a")]
_GROWN: Final = replaced("a", "b" * 40)
_SAME: Final = [replaced("b", "c"), replaced("c", "b")]

FOLDERS: Final[dict[str, Hostile]] = {
    **{
        f"template: {name}{size}": Hostile(template, text=text)
        for name, template in TEMPLATES.items()
        for size, text in (("", "Hello."), (", a long message", SECRET + "x" * 400_000))
    },
    **{
        f"digits of {name}": Hostile(change=cut(split({"Regex": regex})), text="1" * 1_000_000)
        for name, regex in DIGITS.items()
    },
    "digits that a step makes": Hostile(
        change=lambda state: (
            normalised(replaced("a", "1" * 40))(state),
            cut(split({"Regex": DIGITS["Cohere"]}))(state),
        ),
        text="a" * 1900,
        refused="behind the step 'Replace'",
    ),
    "digits that are decoded": Hostile(
        change=decoded(
            {"type": "Fuse"},
            {"type": "Replace", "pattern": {"Regex": DIGITS["Cohere"]}, "content": ""},
        ),
        token="1",
        refused="decoder",
    ),
    "many steps": Hostile(change=normalised(*_TURNED * 110), text="a" * 1900, refused="steps"),
    "growth, then many steps": Hostile(
        change=normalised(_GROWN, *_SAME * 110), text="a" * 1900, refused="steps"
    ),
    "as many steps as are allowed": Hostile(change=normalised(*_TURNED * 12), text="a" * 300_000),
    "many pieces, many steps": Hostile(
        change=cut(*[{"type": "Digits", "individual_digits": True}] * 200),
        text="1" * 1900,
        refused="steps",
    ),
    "a step that grows": Hostile(change=normalised(_GROWN), text="a" * 200_000),
    "an expression without an end": Hostile(
        change=cut(split({"Regex": "(a+)+b$"})), text="a" * 1900, refused="regular expression"
    ),
    "a decoder of many steps": Hostile(change=decoded(*_TURNED * 110), refused="steps"),
    "a decoder that grows": Hostile(change=decoded(_GROWN, *_SAME)),
    "a decoder that grows, of many steps": Hostile(
        change=decoded(_GROWN, *_SAME * 110), refused="steps"
    ),
    "a decoder that strips": Hostile(
        change=decoded(
            {"type": "Fuse"}, {"type": "Strip", "content": "a", "start": 10**9, "stop": 0}
        )
    ),
    "words of 1000": Hostile(
        change=word_pieces(longest=1000), text=("a" * 999 + "b ") * 2, refused="max_input_chars"
    ),
    "words of 128": Hostile(change=word_pieces(), text=("a" * 127 + "b ") * 1000),
    "a long prefix of pieces": Hostile(
        change=word_pieces("z" * 100_000, word="a"), text="a" * 200, refused="prefix"
    ),
    "a long piece": Hostile(
        change=modelled("Unigram", ["a", "a" * 100_000], unk_id=3, byte_fallback=False),
        text="a" * 1_000_000,
        refused="token",
    ),
    "pieces of 256": Hostile(
        change=modelled("Unigram", ["a", "a" * 256], unk_id=3, byte_fallback=False),
        text="a" * 300_000,
    ),
    "a long unknown token": Hostile(
        change=modelled("WordLevel", ["a", "u" * 100_000], unk_token="u" * 100_000),
        text="b " * 5000,
        refused="token",
    ),
    "a long frame": Hostile(change=framed(1_000_000), refused="ids"),
    "added tokens by the ten thousand": Hostile(
        change=added([{"content": f"<{number}>", "lstrip": True} for number in range(20_000)]),
        text="<7> " * 30_000,
    ),
    "added tokens that begin alike": Hostile(
        change=added([{"content": "x" * length + "y"} for length in range(1, 1000)]),
        text="x" * 500_000,
    ),
    "one word": Hostile(
        change=cut(
            {
                "type": "ByteLevel",
                "add_prefix_space": False,
                "trim_offsets": True,
                "use_regex": False,
            }
        ),
        text="the quick" * 100_000,
    ),
    "marks": Hostile(change=normalised({"type": "NFKD"}), text="a\u0327\u0301" * 150_000),
    "spaces": Hostile(
        change=normalised({"type": "Strip", "strip_left": True, "strip_right": True}),
        text=" " * 900_000 + "x",
    ),
}
"""Folders by what is hostile in them."""


def make(name: str, place: Path, *, weights: bool = True) -> Path:
    """Write the folder of a name; the weights are those of the demo model, if any."""
    hostile, folder = FOLDERS[name], place / "hostile"
    folder.mkdir()
    for file in DEMO.iterdir():
        if file.suffix == ".json" or (weights and file.suffix == ".safetensors"):
            shutil.copyfile(file, folder / file.name)
    state = json.loads((folder / "tokenizer.json").read_text())
    hostile.change(state)
    (folder / "tokenizer.json").write_text(json.dumps(state))
    if hostile.template is not None:
        settings = json.loads((folder / "tokenizer_config.json").read_text())
        del settings["chat_template"]
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
        (folder / "chat_template.jinja").write_text(hostile.template)
    return folder


@dataclass
class Seen:
    """What came of a folder.

    Attributes:
        opened: Seconds in which it was opened or refused.
        refused: The error, if it was refused.
        idle: Longest gap of the neighbour's stream, in seconds, before anything hostile.
        gap: The same beside what is hostile.
        pieces: Pieces of the neighbour's stream.
        asked: How often something hostile came to an end.
        errors: The errors of these.
        closed: Seconds in which the engines were closed.
        over: Seconds until no thread and no process was left, and nothing computed.
        left: Threads and processes that are left.
    """

    opened: float = 0.0
    refused: str = ""
    idle: float = 0.0
    gap: float = 0.0
    pieces: int = 0
    asked: int = 0
    errors: dict[str, int] = field(default_factory=dict)
    closed: float = 0.0
    over: float = 0.0
    left: list[str] = field(default_factory=list)


MOST_LEFT: Final = 12.0
"""Seconds after which what is left is told."""
TOKENS: Final[dict[str, Any]] = {"max_new_tokens": 900, "min_new_tokens": 900}


class Neighbour:
    """Counts pieces of a stream and the gaps between them."""

    def __init__(self) -> None:
        self.gap, self.pieces = 0.0, 0
        self._last = 0.0

    def put(self) -> None:
        """Note a piece."""
        now = time.monotonic()
        if self._last:
            self.gap = max(self.gap, now - self._last)
        self._last, self.pieces = now, self.pieces + 1

    def begin(self) -> None:
        """Note that a stream begins, which has no gap before it."""
        self._last = 0.0

    def take(self) -> float:
        """Return the longest gap, the one that lasts included, and begin anew."""
        now = time.monotonic()
        gap = max(self.gap, now - self._last if self._last else 0.0)
        self.gap = 0.0
        return gap


def asks_of(hostile: Hostile, llm: Any) -> list[Callable[[], object]]:
    """What is asked of an engine's objects, each on a thread of its own."""
    chat = [{"role": "user", "content": hostile.text}]
    tokenizer = llm.tokenizer
    token = tokenizer.convert_tokens_to_ids(hostile.token) or 7
    if hostile.template is not None:
        return [
            partial(llm.count_tokens, chat),
            partial(llm.generate, chat, max_new_tokens=2),
            partial(llm.count_tokens, chat),
            partial(tokenizer.apply_chat_template, chat),
        ]
    return [
        partial(llm.count_tokens, hostile.text),
        partial(llm.generate, hostile.text, max_new_tokens=2),
        partial(tokenizer.encode, hostile.text[:200_000]),
        partial(tokenizer.decode, [token] * 20_000),
        partial(tokenizer.decode, [token] * 1_900),
    ]


@contextmanager
def asking(asks: list[Callable[[], object]], seen: Seen) -> Iterator[list[threading.Thread]]:
    """Ask again and again on threads, until the block ends."""
    over, lock = threading.Event(), threading.Lock()

    def ask(one: Callable[[], object]) -> None:
        while not over.is_set():
            said = ""
            try:
                one()
            except AsyncgenError as error:
                said = str(error)
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            with lock:
                seen.asked += 1
                if said and not over.is_set():
                    seen.errors[said[:600]] = seen.errors.get(said[:600], 0) + 1
            over.wait(0.05)

    threads = [threading.Thread(target=ask, args=(one,), daemon=True) for one in asks]
    for thread in threads:
        thread.start()
    try:
        yield threads
    finally:
        over.set()


def sync_door(folder: Path, hostile: Hostile, seconds: float, seen: Seen) -> None:
    """Ask through ``LLM``; the neighbour is another ``LLM``."""
    from asyncgen import LLM

    neighbour, over = Neighbour(), threading.Event()
    plain, llm = LLM("demo", progress=False), LLM(folder, progress=False)

    def read() -> None:
        with suppress(AsyncgenError):
            while not over.is_set():
                neighbour.begin()
                for _ in plain.stream("Once upon a time", **TOKENS):
                    neighbour.put()
                    if over.is_set():
                        return

    plain.start()
    begun = time.monotonic()
    try:
        llm.start()
    except AsyncgenError as error:
        seen.refused = str(error)
    seen.opened = time.monotonic() - begun
    if not seen.refused:
        reader = threading.Thread(target=read)
        reader.start()
        time.sleep(min(1.0, seconds))
        seen.idle = neighbour.take()
        with asking(asks_of(hostile, llm), seen):
            time.sleep(seconds)
            seen.gap = neighbour.take()
            begun = time.monotonic()
            llm.close()
            seen.closed = time.monotonic() - begun
        over.set()
        reader.join(30)
        seen.pieces = neighbour.pieces
    plain.close()


async def _async_door(folder: Path, hostile: Hostile, seconds: float, seen: Seen) -> None:
    from asyncgen import AsyncLLM

    neighbour = Neighbour()
    plain, llm = AsyncLLM("demo", progress=False), AsyncLLM(folder, progress=False)
    await plain.start()
    begun = time.monotonic()
    try:
        await llm.start()
    except AsyncgenError as error:
        seen.refused = str(error)
    seen.opened = time.monotonic() - begun
    if not seen.refused:
        chat = [{"role": "user", "content": hostile.text}]
        prompt: Any = chat if hostile.template is not None else hostile.text

        async def read() -> None:
            while True:
                neighbour.begin()
                async for _ in plain.stream("Once upon a time", **TOKENS):
                    neighbour.put()

        async def ask(number: int) -> None:
            while True:
                try:
                    if number % 2:
                        await llm.count_tokens(prompt)
                    else:
                        await llm.generate(prompt, max_new_tokens=2)
                except AsyncgenError as error:
                    said = str(error)[:600]
                    seen.errors[said] = seen.errors.get(said, 0) + 1
                seen.asked += 1
                await asyncio.sleep(0.05)

        reader = asyncio.create_task(read())
        await asyncio.sleep(min(1.0, seconds))
        seen.idle = neighbour.take()
        asks = [asyncio.create_task(ask(number)) for number in range(6)]
        await asyncio.sleep(seconds)
        seen.gap = neighbour.take()
        begun = time.monotonic()
        await llm.aclose()
        seen.closed = time.monotonic() - begun
        for task in (reader, *asks):
            task.cancel()
        await asyncio.gather(reader, *asks, return_exceptions=True)
        seen.pieces = neighbour.pieces
    await plain.aclose()


def async_door(folder: Path, hostile: Hostile, seconds: float, seen: Seen) -> None:
    """Ask through ``AsyncLLM``, six at a time."""
    asyncio.run(_async_door(folder, hostile, seconds, seen))


DOORS: Final = {"sync": sync_door, "async": async_door}


def left() -> list[str]:
    """Threads and processes of this process beside its first thread."""
    threads = [one.name for one in threading.enumerate() if one is not threading.main_thread()]
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return threads + [f"process {pid}" for pid in children]


def main() -> None:
    """Look at one folder."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    place, name, door, seconds = sys.argv[1:]
    seen = Seen()
    folder = make(name, Path(place))
    DOORS[door](folder, FOLDERS[name], float(seconds), seen)
    begun = time.monotonic()
    while time.monotonic() - begun < MOST_LEFT:
        used = time.process_time()
        time.sleep(0.1)
        if not left() and time.process_time() - used < 0.05:
            break
    seen.over, seen.left = time.monotonic() - begun, left()
    sys.stdout.write(json.dumps(asdict(seen)) + "\n")
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
