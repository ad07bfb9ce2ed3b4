"""What a caller of the chat function gives is refused by name if it is unknown."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import gradio as gr
import pytest

from asyncgen_apps.gradio_chat.api import chat_function
from asyncgen_apps.gradio_chat.settings import ModelDefaults
from asyncgen_apps.serving.clients import Proxies
from tests.apps.gradio_chat.doubles import ScriptedModel
from tests.cases import for_each

pytestmark = pytest.mark.anyio

LONG = "x" * 100_000
MESSAGE = {"role": "user", "content": "Hi."}

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a number as message": ({"message": 5}, "`message` is 5"),
    "a long list as message": ({"message": [LONG]}, "`message` is ['xx"),
    "a number as history": ({"history": 5}, "`history` is 5"),
    "a text as history": ({"history": LONG}, "`history` is 'xx"),
    "an empty object as history": ({"history": {}}, "`history` is {}"),
    "a long role": ({"history": [{"role": LONG, "content": ""}]}, "'role': 'xx"),
    "an unknown key": ({"history": [{**MESSAGE, "junk": LONG}]}, "with 'junk': unknown. Known: "),
    "a long key": ({"history": [{**MESSAGE, LONG: 1}]}, "with 'xxx"),
    "a list as reasoning": ({"history": [{**MESSAGE, "reasoning": [LONG]}]}, "as `reasoning`"),
    "a list as settings": ({"settings": [LONG]}, "`settings` is ['xx"),
    "an empty list as settings": ({"settings": []}, "`settings` is []"),
    "a long name": ({"settings": {LONG: 1}}, "`settings` has 'xx"),
    "a long value": ({"settings": {"seed": LONG}}, "`settings` has 'seed' as 'xx"),
    "no end": ({"settings": {"max_new_tokens": float("inf")}}, "'max_new_tokens' as inf"),
    "no number": ({"settings": {"seed": float("nan")}}, "'seed' as nan"),
}


@for_each("name", WRONG)
async def test_what_is_unknown_is_refused_by_name_and_clipped(name: str) -> None:
    arguments, words = WRONG[name]
    model = ScriptedModel()
    chat = chat_function(model, ModelDefaults(model), None, Proxies(()))
    request: Any = SimpleNamespace(client=None, headers={})
    with pytest.raises(gr.Error) as raised:
        await anext(chat(request, **{"message": "Who?", **arguments}))
    assert words in raised.value.message
    assert len(raised.value.message) < 2000
    assert not raised.value.print_exception
    assert not model.asked
