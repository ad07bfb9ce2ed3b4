"""Describe one parameter of a generation: a row of the table in `parameters`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from asyncgen.generation.config.rules import Documented, Range

if TYPE_CHECKING:
    from asyncgen.generation.config.rules import Rule


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Kind of the token ids in a parameter.

    Attributes:
        several: Whether there may be a list of them.
        is_set: Whether the order of the list, and an id named twice, mean nothing.
        is_written: Whether they are put into the output, wherever they were asked for.
        words: Whether they are sequences, whose form is checked by those who use them.
    """

    several: bool = True
    is_set: bool = False
    is_written: bool = False
    words: bool = False


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter.

    Attributes:
        name: The documented name.
        type: Its type as an annotation; ``None``, which means not given, aside.
        doc: What it does, its range, and its paper where there is one.
        default: What `generate` uses where it is None; None where it has no default.
        rule: The values that a request may give; None where those who use it check it.
        needs: The switch without which it has no effect: "do_sample", "num_beams",
            "use_cache", "return_dict_in_generate", a parameter of `SAMPLERS`, or None.
        neutral: Values that switch it off; None always does.
        awaits: What it asks for that is not served yet; None where it is served.
        ids: What token ids are in it; None for none.
        elsewhere: Why it is no parameter of a stream, and what to do instead; empty if it is one.
        is_local: Whether it stays with the process, because it runs code, opens files, or is no
            JSON: servers refuse it.
        group: What it belongs to.
    """

    name: str
    type: str
    doc: str
    default: Any = None
    rule: Rule | None = None
    needs: str | None = None
    neutral: tuple[Any, ...] = ()
    awaits: str | None = None
    ids: TokenIds | None = None
    elsewhere: str = ""
    is_local: bool = False
    group: str = ""

    @property
    def range(self) -> Range | None:
        """The numbers that a request may give; None where they are not of a range."""
        rule = self.rule.rule if isinstance(self.rule, Documented) else self.rule
        return rule if isinstance(rule, Range) else None

    def is_neutral(self, value: object) -> bool:
        """Tell whether ``value`` leaves the parameter switched off."""
        return value is None or any(_same(value, neutral) for neutral in self.neutral)


def group(name: str, *rows: Parameter) -> tuple[Parameter, ...]:
    """Return rows with the name of what they belong to."""
    return tuple(replace(row, group=name) for row in rows)


def _same(left: object, right: object) -> bool:
    try:
        return bool(left == right)
    except Exception:  # an array compares to an array, whose truth value is an error
        return False
