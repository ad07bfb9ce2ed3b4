"""The settings panel: one widget for each field of the table.

Until the page has drawn what its browser kept, the widgets show neither that nor the defaults: an
empty number is 0 then. So what stands in them counts only afterwards.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr

from asyncgen_apps.gradio_chat.fields import FIELDS, GROUPS, Field, Values
from asyncgen_apps.gradio_chat.settings import checked

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradio.components import Component


DIFFERING = Path(__file__).with_name("differing.js").read_text(encoding="utf-8")
TABLE = [(each.name, each.group, each.title) for each in FIELDS]
"""What the browser has to know of each field."""
QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


class SettingsPanel:
    """Widgets of the settings, in the order of the table; make it inside a layout.

    Attributes:
        widgets: One for each field.
        inputs: The inputs of an event: the defaults as the page was drawn with them, as JSON, empty
            before; then all widgets.
        views: What ``restored`` updates.
    """

    def __init__(self, shown: Values, strategies: Sequence[str]) -> None:
        """Draw the panel.

        Args:
            shown: The model's defaults.
            strategies: Strategies to choose from.
        """
        self._shown = shown
        self._strategies = strategies
        self._groups: list[Component | gr.Accordion] = []
        self._drawn = gr.Textbox("", visible=False)
        drawn: dict[str, Component] = {}
        for group in GROUPS:
            fields = [each for each in FIELDS if each.group == group]
            if group:
                with gr.Accordion(
                    group,
                    open=group == "Sampling",
                    elem_classes="group",
                    elem_id=f"group-{group}",
                    visible=_is_used(group, shown),
                ) as box:
                    drawn |= {each.name: self._draw(each) for each in fields}
                self._groups.append(box)
            else:
                drawn |= {each.name: self._draw(each) for each in fields}
        self.widgets = [drawn[each.name] for each in FIELDS]
        self.inputs = [self._drawn, *self.widgets]
        arranged = [*self.widgets, *self._groups]
        self.views = [*arranged, self._drawn]
        gr.on(
            [each.change for each in [self._drawn, *self.widgets]],  # type: ignore[attr-defined]
            None,
            self.inputs,
            js=DIFFERING.replace("FIELDS", json.dumps(TABLE)),
            **QUIET,
        )
        reset = gr.Button("Back to the model's defaults", size="sm", elem_id="reset")
        reset.click(self.restored, None, self.views, **QUIET)
        switches: list[Any] = [drawn["strategy"], drawn["draw"]]
        for switch in switches:
            switch.change(self._rearranged, switches, arranged, **QUIET)

    def values(self, given: Sequence[Any], kept: Mapping[str, Any]) -> Values:
        """Return what is chosen, by name of the field.

        Args:
            given: What the inputs brought.
            kept: What the browser kept, which counts until the page has been drawn.
        """
        drawn, *shown = given
        if not drawn:
            return self._with(kept)
        return {each.name: value for each, value in zip(FIELDS, shown, strict=True)}

    def restored(self, chosen: Values | None = None) -> list[Any]:
        """Return updates of all views: the defaults, and over them what was chosen."""
        values = self._with(chosen or {})
        return [
            *[gr.update(value=values[each.name], visible=each.used_by(values)) for each in FIELDS],
            *_groups(values),
            gr.update(value=json.dumps([self._shown[each.name] for each in FIELDS])),
        ]

    def _with(self, chosen: Mapping[str, Any]) -> Values:
        """Return the defaults, and over them what was chosen."""
        values = {**self._shown, **checked(chosen)}
        if values["strategy"] not in self._strategies:
            values["strategy"] = self._shown["strategy"]
        return values

    def _rearranged(self, strategy: str, draw: bool) -> list[Any]:
        """Show what the strategy uses."""
        values = {"strategy": strategy, "draw": draw}
        return [*[gr.update(visible=each.used_by(values)) for each in FIELDS], *_groups(values)]

    def _draw(self, field: Field) -> Component:
        value = self._shown[field.name]
        common: dict[str, Any] = {
            "label": field.title,
            "info": field.info or None,
            "value": value,
            "interactive": True,
            "visible": field.used_by(self._shown),
            "elem_id": f"setting-{field.name}",
        }
        if field.kind in ("slider", "integer", "number"):
            low = field.range.low + (field.step if field.range.above else 0)
            common |= {"minimum": low, "maximum": field.range.high, "step": field.step}
            if field.kind == "slider":
                return gr.Slider(**common)
            precision = 0 if field.kind == "integer" else None
            return gr.Number(precision=precision, placeholder="none", **common)
        if field.kind == "flag":
            return gr.Checkbox(**common)
        if field.kind == "choice":
            named = [(label, value) for value, label in field.choices.items()]
            if field.name == "strategy":
                named = [pair for pair in named if pair[1] in self._strategies]
            return gr.Dropdown(named, filterable=False, **common)
        return gr.Textbox(lines=2, max_lines=6, **common)


def _is_used(group: str, values: Mapping[str, Any]) -> bool:
    return any(each.used_by(values) for each in FIELDS if each.group == group)


def _groups(values: Mapping[str, Any]) -> list[Any]:
    """Updates of the groups: one with nothing in it is not shown."""
    return [gr.update(visible=_is_used(group, values)) for group in GROUPS if group]
