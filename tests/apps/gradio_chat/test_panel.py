"""One widget for each field, shown where the strategy uses it; the look fetches nothing."""

from __future__ import annotations

import inspect
import re
from functools import cache
from typing import Any, cast

import gradio as gr
import pytest

from asyncgen import GenerationConfig
from asyncgen.generation.config.parameters import BY_NAME
from asyncgen_apps.gradio_chat.fields import FIELDS, GROUPS
from asyncgen_apps.gradio_chat.own_content import OwnContentOnly
from asyncgen_apps.gradio_chat.panel import SettingsPanel
from asyncgen_apps.gradio_chat.settings import defaults
from asyncgen_apps.gradio_chat.theme import ON_LOAD, TOGGLE_THEME, launch_options, theme

pytestmark = pytest.mark.anyio  # outside of a loop Gradio makes one, and leaves it open

SHOWN = defaults(GenerationConfig(do_sample=True, temperature=0.6))


@cache
def _panel() -> SettingsPanel:
    with gr.Blocks(analytics_enabled=False):
        return SettingsPanel(SHOWN, ["sampling", "greedy"])


async def test_the_widgets_show_the_models_defaults() -> None:
    panel = _panel()
    values = panel.values(["[]", *[widget.value for widget in panel.widgets]], {})
    assert values == SHOWN


async def test_until_the_page_is_drawn_what_the_browser_kept_counts() -> None:
    panel = _panel()
    empty = [0 for _ in panel.widgets]
    kept = {"temperature": 0.3, "top_k": -1, "strategy": "beams"}
    assert panel.values(["", *empty], kept) == {**SHOWN, "temperature": 0.3}
    assert panel.values([None, *empty], {}) == SHOWN
    assert panel.restored()[panel.views.index(panel.inputs[0])]["value"]


async def test_fields_are_called_what_the_parameters_are_called() -> None:
    titles = {field.name: field.title for field in FIELDS}
    assert titles["max_new_tokens"] == "max_new_tokens"
    assert (titles["contrastive_k"], titles["draw"]) == ("top_k", "do_sample")
    assert titles["decay_factor"] == "exponential_decay_length_penalty: factor"
    own = {"system", "strategy"}
    assert all(
        titles[field.name].split(":")[0] in BY_NAME for field in FIELDS if field.name not in own
    )
    assert all(field.info for field in FIELDS)


def _named(updates: list[Any]) -> dict[str, Any]:
    names = [field.name for field in FIELDS] + [group for group in GROUPS if group]
    return dict(zip(names, updates, strict=False))


async def test_restored_values_override_the_defaults() -> None:
    updates = _named(_panel().restored({"temperature": 0.3}))
    assert updates["temperature"]["value"] == 0.3
    assert updates["top_k"]["value"] == 50
    assert updates["temperature"]["visible"] is True
    assert updates["num_beams"]["visible"] is False


async def test_a_strategy_that_is_not_there_is_not_restored() -> None:
    updates = _named(_panel().restored({"strategy": "beams"}))
    assert updates["strategy"]["value"] == "sampling"


async def test_settings_without_effect_are_hidden_with_their_heading() -> None:
    updates = _named(_panel()._rearranged("greedy", True))
    assert updates["temperature"]["visible"] is False
    assert updates["Sampling"]["visible"] is False
    assert updates["Length"]["visible"] is True
    updates = _named(_panel()._rearranged("lookup", True))
    assert updates["temperature"]["visible"] is updates["Sampling"]["visible"] is True
    assert updates["draw"]["visible"] is True


def test_launch_and_mount_take_every_option() -> None:
    for function in (gr.Blocks.launch, gr.mount_gradio_app):
        assert set(launch_options()) <= set(inspect.signature(function).parameters)


def test_page_loads_no_external_resources() -> None:
    options = launch_options()
    fonts = theme()._stylesheets
    assert [sheet for sheet in fonts if sheet.startswith("http")] == []
    assert re.findall(r"https?:|@import|url\(", options["css"]) == []
    assert options["run_history"] is False


def test_the_choice_of_light_and_dark_is_kept_where_it_is_looked_for() -> None:
    keys = [re.findall(r'Item\("(.*?)"', script) for script in (ON_LOAD, TOGGLE_THEME)]
    assert keys == [["asyncgen.theme"], ["asyncgen.theme"]]


async def test_every_reply_of_the_page_has_the_policy() -> None:
    sent: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def send(message: Any) -> None:
        sent.append(message)

    await OwnContentOnly(app)({"type": "http"}, cast("Any", None), send)
    headers = dict(sent[0]["headers"])
    policy = headers[b"content-security-policy"].decode()
    assert "default-src 'none'" in policy
    assert "img-src data: blob:;" in policy
    assert launch_options()["app_kwargs"]["middleware"][0].cls is OwnContentOnly
