"""Find the GGUF file of a model in a folder or a repository, by names alone."""

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
"""Files of a model after the first one."""
_BESIDE: Final = "*mmproj*"
"""Files of vision and audio encoders, which are no language models."""
_LISTED: Final = 8


def is_single(path: Path) -> bool:
    """Tell whether a path is that of a GGUF file."""
    return path.suffix == SUFFIX


def patterns_of(part: str) -> list[str]:
    """Return patterns of file names for the part of ``hub-id:part``.

    Args:
        part: A file of the repository, or the end of its name, such as ``"Q4_K_M"``.
    """
    if part.endswith(SUFFIX):
        return [part, f"{part.removesuffix(SUFFIX)}-*-of-*{SUFFIX}"]
    ways = dict.fromkeys((part, part.upper(), part.lower()))
    ends = (SUFFIX, f"-*-of-*{SUFFIX}")
    return [f"*{mark}{way}{end}" for way in ways for mark in ".-_" for end in ends] + [
        f"{way}/*{SUFFIX}" for way in ways
    ]


def only_model(folder: Path, patterns: Sequence[str] = (f"*{SUFFIX}",)) -> Path | None:
    """Return the only model in a folder whose name fits; ``None``: there is none.

    Args:
        folder: The folder; a pattern may name folders in it.
        patterns: Patterns of names relative to the folder.

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
