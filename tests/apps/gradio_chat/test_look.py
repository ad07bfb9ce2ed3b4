"""The look is made of what is in the package: nothing is fetched."""

from __future__ import annotations

import inspect
import re

import gradio as gr

from asyncgen_apps.gradio_chat.look import ON_LOAD, TOGGLE_THEME, launch_options, theme


def test_launch_and_mount_take_every_option() -> None:
    for function in (gr.Blocks.launch, gr.mount_gradio_app):
        assert set(launch_options()) <= set(inspect.signature(function).parameters)


def test_nothing_comes_from_elsewhere() -> None:
    options = launch_options()
    fonts = theme()._stylesheets
    assert [sheet for sheet in fonts if sheet.startswith("http")] == []
    assert re.findall(r"https?:|@import|url\(", options["css"]) == []
    assert options["run_history"] is False


def test_the_choice_of_light_and_dark_is_kept_where_it_is_looked_for() -> None:
    keys = [re.findall(r'Item\("(.*?)"', script) for script in (ON_LOAD, TOGGLE_THEME)]
    assert keys == [["asyncgen.theme"], ["asyncgen.theme"]]
