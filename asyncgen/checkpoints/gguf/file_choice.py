"""Which file of a folder, or of a repository on the hub, a model in one file is. Names alone."""

from __future__ import annotations

import fnmatch
import re
from typing import TYPE_CHECKING, Final

from asyncgen.errors import ModelLoadError, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

SUFFIX: Final = ".gguf"

_LATER: Final = re.compile(r"-(?!00001)\d{5}-of-\d{5}\.gguf$")
"""The second file of a model and those after it."""
_BESIDE: Final = "*mmproj*"
"""What sees and hears for a language model, and is none."""
_LISTED: Final = 8


def is_single(path: Path) -> bool:
    """Whether a path is that of a model in one file."""
    return path.suffix == SUFFIX


def patterns_of(part: str) -> list[str]:
    """Names that may be meant by what stands behind the colon of ``hub-id:part``.

    Args:
        part: A file of the repository, or what its name ends with, such as ``"Q4_K_M"``.
    """
    if part.endswith(SUFFIX):
        return [part, f"{part.removesuffix(SUFFIX)}-*-of-*{SUFFIX}"]
    ways = dict.fromkeys((part, part.upper(), part.lower()))
    ends = (SUFFIX, f"-*-of-*{SUFFIX}")
    return [f"*{mark}{way}{end}" for way in ways for mark in ".-_" for end in ends] + [
        f"{way}/*{SUFFIX}" for way in ways
    ]


def only_model(folder: Path, patterns: Sequence[str] = (f"*{SUFFIX}",)) -> Path | None:
    """The one model in a folder whose name fits; ``None``: there is none.

    Args:
        folder: Where to look; folders in it too, where a pattern names them.
        patterns: Of names from there on.

    Raises:
        ModelLoadError: There are several.
    """
    names = [str(file.relative_to(folder)) for file in folder.glob(f"*{SUFFIX}")]
    names += [str(file.relative_to(folder)) for file in folder.glob(f"*/*{SUFFIX}")]
    names = [name for name in names if not _LATER.search(name)]
    fits = [
        name
        for name in sorted(names)
        if not fnmatch.fnmatchcase(name, _BESIDE)
        and any(_fits(name, pattern) for pattern in patterns)
    ]
    if len(fits) > 1:
        listed = ", ".join(map(shorten, fits[:_LISTED]))
        raise ModelLoadError(f"{folder} has {len(fits)} models ({listed}); give the path of one")
    return folder / fits[0] if fits else None


def _fits(name: str, pattern: str) -> bool:
    return name.count("/") == pattern.count("/") and fnmatch.fnmatchcase(name, pattern)
