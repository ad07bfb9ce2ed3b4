"""The settings panel: one widget for each field of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gradio as gr

from asyncgen_apps.gradio_chat.fields import FIELDS, GROUPS, Field, Values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gradio.components import Component


QUIET: dict[str, Any] = {"queue": False, "show_progress": "hidden", "api_visibility": "private"}


class SettingsPanel:
    """Widgets of the settings, in the order of the table; make it inside a layout.

    Attributes:
        widgets: One for each field; the inputs of an event.
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
        drawn: dict[str, Component] = {}
        for group in GROUPS:
            fields = [each for each in FIELDS if each.group == group]
            if group:
                with gr.Accordion(
                    group,
                    open=group == "Sampling",
                    elem_classes="group",
                    visible=_is_used(group, shown),
                ) as box:
                    drawn |= {each.name: self._draw(each) for each in fields}
                self._groups.append(box)
            else:
                drawn |= {each.name: self._draw(each) for each in fields}
        self.widgets = [drawn[each.name] for each in FIELDS]
        self.views = [*self.widgets, *self._groups]
        reset = gr.Button("Back to the model's defaults", size="sm", elem_id="reset")
        reset.click(self.restored, None, self.views, **QUIET)
        switches: list[Any] = [drawn["strategy"], drawn["draw"]]
        for switch in switches:
            switch.change(self._rearranged, switches, self.views, **QUIET)

    def values(self, given: Sequence[Any]) -> Values:
        """Return what stands in the widgets, by name of the field."""
        return {each.name: value for each, value in zip(FIELDS, given, strict=True)}

    def restored(self, chosen: Values | None = None) -> list[Any]:
        """Return updates of all views: the defaults, and over them what was chosen."""
        values = {**self._shown, **(chosen or {})}
        if values["strategy"] not in self._strategies:
            values["strategy"] = self._shown["strategy"]
        return [
            *[gr.update(value=values[each.name], visible=each.used_by(values)) for each in FIELDS],
            *_groups(values),
        ]

    def _rearranged(self, strategy: str, draw: bool) -> list[Any]:
        """Show what the strategy uses."""
        values = {"strategy": strategy, "draw": draw}
        return [*[gr.update(visible=each.used_by(values)) for each in FIELDS], *_groups(values)]

    def _draw(self, field: Field) -> Component:
        value = self._shown[field.name]
        common: dict[str, Any] = {
            "label": field.label,
            "info": field.info or None,
            "value": value,
            "interactive": True,
            "visible": field.used_by(self._shown),
            "elem_id": f"setting-{field.name}",
        }
        if field.kind == "slider":
            return gr.Slider(field.low or 0, field.high or 1, step=field.step, **common)
        if field.kind in ("integer", "number"):
            precision = 0 if field.kind == "integer" else None
            common |= {"minimum": field.low, "maximum": field.high, "step": field.step}
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
