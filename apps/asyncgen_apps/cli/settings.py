"""Generation settings in one table: a row serves the option, ``/set`` and ``/help``."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import TYPE_CHECKING, TypeAlias, cast

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from asyncgen import StreamParams


Value: TypeAlias = bool | int | float | list[str]


class SettingError(ValueError):
    """Unknown setting, or a value that it does not take."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Generation parameter as users see it.

    Attributes:
        name: Its name in ``/set``; the option is ``--name`` with dashes.
        kind: ``bool``, ``int``, ``float``, or ``list`` (of strings).
        help: One line for ``--help`` and ``/set``.
        parameter: Its name in ``AsyncLLM.stream``, where that differs.
        default: Value if neither the user nor the model gives one.
    """

    name: str
    kind: type[bool] | type[int] | type[float] | type[list[str]]
    help: str
    parameter: str = ""
    default: Value | None = None

    @property
    def stream_name(self) -> str:
        """Name of the parameter of ``AsyncLLM.stream``."""
        return self.parameter or self.name

    def parse(self, text: str) -> Value:
        """Read a value as typed after ``/set name``.

        Raises:
            SettingError: It is not of the right type or out of range.
        """
        text = text.strip()
        if self.kind is bool:
            return self._parse_bool(text)
        if self.kind is list:
            return self.check(_parse_strings(text))
        number: object = text
        with suppress(ValueError):
            number = int(text) if self.kind is int else float(text)
        return self.check(number)

    def check(self, value: object) -> Value:
        """Return ``value`` if this setting takes it; a float setting takes integers too.

        Raises:
            SettingError: It is not of the right type or out of range.
        """
        if self.kind is bool and isinstance(value, bool):
            return value
        if self.kind is list and isinstance(value, list) and value:
            if all(isinstance(item, str) and item for item in value):
                return value
        if self.kind in (bool, list) or self._rule(value) is not None:
            raise self._refuse(value)
        number = cast("int | float", value)
        return float(number) if self.kind is float else number

    @property
    def allowed(self) -> str:
        """Say what a value must be."""
        if self.kind is bool:
            return "must be on or off"
        if self.kind is list:
            return 'must be text, or several in quotes: "END" "\\n\\n"'
        return str(self._rule(None))

    def _rule(self, value: object) -> str | None:
        """Apply the rule of the library; return what a value must be, unless it is that."""
        from asyncgen import STREAM_PARAMETERS  # late: many commands never need the table

        rule = STREAM_PARAMETERS[self.stream_name].rule
        return None if rule is None else rule(value)

    def _parse_bool(self, text: str) -> Value:
        """Read a switch."""
        word = text.lower()
        if word in ("on", "true", "yes", "1"):
            return True
        if word in ("off", "false", "no", "0"):
            return False
        return self.check(text)

    def _refuse(self, value: object) -> SettingError:
        """Compose the error for a value that is not taken, as the library composes it."""
        shown = value if isinstance(value, str) else json.dumps(value)
        return SettingError(f"`{self.name}` is {shown}: {self.allowed}")


def _parse_strings(text: str) -> list[str]:
    """Read JSON strings one after the other; text without quotes is one string as it stands."""
    if not text.startswith('"'):
        return [text]
    strings: list[str] = []
    decoder = json.JSONDecoder()
    while text:
        try:
            value, end = decoder.raw_decode(text)
        except ValueError:
            raise SettingError(f"cannot read {text}: close the quote, or leave it out") from None
        strings.append(str(value))
        text = text[end:].lstrip(" ,")
    return strings


SETTINGS: tuple[Setting, ...] = (
    Setting("max_new_tokens", int, "Longest answer, in tokens."),
    Setting("min_new_tokens", int, "Shortest answer, in tokens."),
    Setting("max_time", float, "Longest time for an answer, in seconds."),
    Setting("temperature", float, "Below 1 safer, above 1 bolder; 0 takes the best token.",
            default=1.0),
    Setting("top_k", int, "Sample from the k most probable tokens; 0 is off.", default=50),
    Setting("top_p", float, "Sample from the fewest tokens that hold this share.", default=1.0),
    Setting("min_p", float, "Drop tokens below this share of the most probable one."),
    Setting("typical_p", float, "Sample from the most typical tokens.", default=1.0),
    Setting("repetition_penalty", float, "Above 1 repeats less.", default=1.0),
    Setting("no_repeat_ngram_size", int, "Never repeat a run of this many tokens; 0 is off.",
            default=0),
    Setting("seed", int, "Same seed, same answer."),
    Setting("stop", list, "End the answer before this text."),
    Setting("sample", bool, "Draw tokens at random, or take the best.",
            parameter="do_sample", default=False),
)  # fmt: skip
"""The ranges of numbers are those of the library's own table, `asyncgen.STREAM_PARAMETERS`."""

SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


def model_values(config: object | None) -> dict[str, Value | None] | None:
    """Return the settings of a model's configuration; ``None`` if it has none."""
    if config is None:
        return None
    return {each.stream_name: getattr(config, each.stream_name, None) for each in SETTINGS}


def find_setting(name: str) -> Setting:
    """Look a setting up by its name, with dashes or underscores.

    Raises:
        SettingError: There is none; names the nearest one.
    """
    wanted = name.strip().lstrip("-").replace("-", "_").lower()
    for setting in SETTINGS:
        if wanted in (setting.name, setting.stream_name):
            return setting
    near = get_close_matches(wanted, [setting.name for setting in SETTINGS], n=1)
    hint = f"did you mean `{near[0]}`?" if near else "/set alone lists all settings"
    raise SettingError(f"unknown setting `{name}`: {hint}")


@dataclass(slots=True)
class Settings:
    """Chosen settings; the model decides the others.

    Attributes:
        values: Chosen values, by name.
        sources: Source of each: ``command line``, ``/set``, ``saved chat``.
        model: Values of the model's configuration, by parameter of ``AsyncLLM.stream``; ``None`` if
            not known, as of a server's model.
    """

    values: dict[str, Value] = field(default_factory=dict)
    sources: dict[str, str] = field(default_factory=dict, compare=False)
    model: Mapping[str, Value | None] | None = field(default=None, compare=False)

    def set(self, name: str, value: Value | None, source: str = "/set") -> None:
        """Choose a value; ``None`` goes back to the model's default.

        Raises:
            SettingError: No such setting, or not a value that it takes.
        """
        setting = find_setting(name)
        if value is None:
            self.values.pop(setting.name, None)
        else:
            self.values[setting.name] = setting.check(value)
            self.sources[setting.name] = source

    def standing(self, setting: Setting) -> tuple[Value | None, str]:
        """Return the value that the next answer gets, and its source.

        The source is one of :attr:`sources`, ``model``, ``library``, ``server`` (whose value is
        not known here), or the other setting that implies this one.
        """
        if setting.name in self.values:
            return self.values[setting.name], self.sources.get(setting.name, "chosen")
        if setting.name == "sample":
            if self.values.get("temperature") == 0:
                return False, "temperature"
            asking = next((name for name in SAMPLING if name in self.values), None)
            if asking is not None:
                return True, asking
        if self.model is None:
            return None, "server"
        own = self.model.get(setting.stream_name)
        return (setting.default, "library") if own is None else (own, "model")

    def __iter__(self) -> Iterator[tuple[Setting, Value | None]]:
        """Iterate over the table with the chosen values, ``None`` if nothing is chosen."""
        return ((setting, self.values.get(setting.name)) for setting in SETTINGS)

    def params(self) -> StreamParams:
        """Return the chosen settings as keyword parameters of ``AsyncLLM.stream``.

        Raises:
            SettingError: A setting of sampling together with ``sample off``, or a temperature of 0
                together with ``sample on``.
        """
        coldest = self.values.get("temperature") == 0
        if coldest and self.values.get("sample") is True:
            raise SettingError(
                "`temperature` is 0, where the most probable token wins: "
                "raise it, or leave out `sample on` (--sample)"
            )
        used = {"temperature"} if coldest else frozenset()
        clash = next((name for name in SAMPLING if name in self.values.keys() - used), None)
        if self.values.get("sample") is False and clash is not None:
            raise SettingError(
                f"`{clash}` has no effect on the most probable token: "
                f"leave out `{clash}`, or `sample off` (--greedy)"
            )
        chosen = {s.stream_name: value for s, value in self if value is not None}
        return cast("StreamParams", chosen)
