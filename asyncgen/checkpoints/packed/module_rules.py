"""Find the settings of a single module by the rules of GPTQModel's ``dynamic``.

Each rule is a regular expression that must match the beginning of a module's name, such as
``model.layers.3.mlp.up_proj``. Behind ``-:`` it names modules that are not quantised, and these
rules come first; behind ``+:``, or without a sign, it names modules whose settings differ. The
first rule that matches decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncgen.checkpoints.packed.file_expressions import FileExpressions
from asyncgen.checkpoints.packed.stated_settings import UnknownSettingError
from asyncgen.errors import clip, shorten

if TYPE_CHECKING:
    from collections.abc import Mapping


class ModuleRules:
    """Rules by which some modules have settings of their own."""

    def __init__(self, rules: object) -> None:
        """Check all rules.

        Args:
            rules: ``dynamic`` of a ``quantization_config``; ``None``: there are no rules.

        Raises:
            UnknownSettingError: An expression is invalid, or its settings are no object.
        """
        if rules is not None and not isinstance(rules, dict):
            allowed = "it must hold rules by expression"
            raise UnknownSettingError(f"`dynamic` is {shorten(rules)}; {allowed}")
        given: Mapping[str, Any] = rules or {}
        ordered = sorted(given, key=lambda rule: not rule.startswith("-:"))
        self._expressions = FileExpressions(map(_expression, ordered), "dynamic")
        self._rules = [
            (
                rule,
                _expression(rule),
                None if rule.startswith("-:") else _settings(rule, given[rule]),
            )
            for rule in ordered
        ]
        self.all = {rule: own for rule, _, own in self._rules if own is not None}
        """Settings of each rule that has some."""

    def of(self, module: str) -> str | None:
        """Return the rule of a module; ``None``: it has no settings of its own.

        Raises:
            UnknownSettingError: By its rule, the module is not quantised; or it takes too long.
        """
        for rule, expression, own in self._rules:
            if self._expressions.match(expression, module):
                if own is None:
                    said = f"`dynamic` says by {shorten(rule)} that `{clip(module, 200)}`"
                    raise UnknownSettingError(f"{said} is not quantised, and it is")
                return rule
        return None


def _expression(rule: str) -> str:
    """Return the expression of a rule, without its sign."""
    return rule.removeprefix("-:").removeprefix("+:")


def _settings(rule: str, own: object) -> dict[str, Any]:
    if not isinstance(own, dict):
        found = f"{shorten(own)} for {shorten(rule)}"
        raise UnknownSettingError(f"`dynamic` has {found}; it must hold settings")
    return own
