"""Extend the reading of sources: roles in docstrings, and full signatures.

Docstrings name other objects by roles (``:class:`X```), which Markdown does not know. A function
that takes ``**options`` may say what they are in its ``__signature__``, which `help` reads.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|meth|func|attr|data|mod):(`+)~?([^`]+)\1")


class Reading(griffe.Extension):
    """Extension that turns roles into code, and shows signatures as they are called."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite the docstring before it is read."""
        if obj.docstring is not None:
            obj.docstring.value = ROLE.sub(r"`\2`", obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        """Take the signature that a function sets for itself, if any."""
        module = func.module.path
        is_open = any("Unpack[" in str(each.annotation) for each in func.parameters)
        if not is_open or not module.startswith("asyncgen."):  # applications are not imported
            return
        function = operator.attrgetter(func.path.removeprefix(f"{module}."))(
            importlib.import_module(module)
        )
        signature: inspect.Signature | None = getattr(function, "__signature__", None)
        if signature is not None:
            func.parameters = griffe.Parameters(*map(_parameter, signature.parameters.values()))


def _parameter(given: inspect.Parameter) -> griffe.Parameter:
    kind = getattr(griffe.ParameterKind, given.kind.name.lower())
    # As a string where the source has one, of a reference to a name what it refers to.
    annotation = getattr(given.annotation, "__forward_arg__", given.annotation)
    if annotation is inspect.Parameter.empty:
        annotation = None
    elif not isinstance(annotation, str):
        annotation = inspect.formatannotation(annotation)
    default = None if given.default is inspect.Parameter.empty else repr(given.default)
    return griffe.Parameter(given.name, annotation=annotation, kind=kind, default=default)
