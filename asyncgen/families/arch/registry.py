"""All families by ``model_type``: one in each file beside this one."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

from asyncgen.families import arch

if TYPE_CHECKING:
    from asyncgen.families.plans.declaration import Family

FAMILIES: dict[str, Family] = {
    module.name: import_module(f"{arch.__name__}.{module.name}").FAMILY
    for module in iter_modules(arch.__path__)
    if module.name != "registry"
}
"""Declaration of each ``model_type``; its file has the same name."""
