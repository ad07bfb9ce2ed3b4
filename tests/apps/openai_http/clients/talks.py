"""Script the model's answers to clients with tools or structured output."""

from __future__ import annotations

import gc
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.apps.openai_http.running import running
from tests.apps.openai_http.scripted import call, talking

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.running import Running

ADA = '{"name": "Ada", "age": 36}'
WEATHER = '{"city": "Paris"}'
SUNNY = "It is sunny in Paris."
HELLO = "Hello there."


def answer(prompt: str) -> str:
    """Call the tool that the question is for; a person where one is asked for; else a greeting."""
    tools = re.findall(r"\[([\w-]+)\]", prompt.partition("\n")[0])
    if "\ntool:" in prompt:
        rest = [name for name in tools if name != "weather"]
        return call(rest[0], ADA) if rest else SUNNY
    if "weather" in tools:
        return call("weather", WEATHER)
    if tools:
        return call(tools[0], ADA)
    return ADA if "person" in prompt.lower() else HELLO


@contextmanager
def talks() -> Iterator[Running]:
    """A server of the model that talks so."""
    with running(lambda: talking(answer)) as served:
        yield served
    gc.collect()  # finds what a client left open while its warnings are still ignored
