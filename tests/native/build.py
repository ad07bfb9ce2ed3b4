"""Builds of the kernels that are not the installed one: checked, sanitized, emulated, by clang."""

from __future__ import annotations

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

ROOT = Path(__file__).parents[2]
SOURCES = ROOT / "asyncgen/native/src"
EMULATION = Path(__file__).parent / "emulation"

CHECKS = ("-DASYNCGEN_CHECK",)
CHECKED = ("-O1", *CHECKS)
SANITIZED = (*CHECKED, "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined")

needs_compiler = pytest.mark.skipif(
    sys.platform != "linux" or shutil.which("g++") is None, reason="no g++ on Linux here"
)


@functools.cache
def builder() -> Any:
    """The project's ``hatch_build.py``."""
    return _load("hatch_build", ROOT / "hatch_build.py")


def build_kernels(
    folder: Path, flags: Sequence[str], *, is_emulated: bool, compiler: str = "g++"
) -> Path:
    """Compile the kernels.

    Args:
        folder: Where to.
        flags: Of the compiler.
        is_emulated: Whether the vectors and tiles are plain C++, which runs on any x86-64.
        compiler: GCC or clang.

    Returns:
        The module's file.
    """
    target = folder / "_kernels.so"
    sources = sorted(SOURCES.glob("*.cpp"))
    options: dict[str, Any] = {}
    if is_emulated:
        sources = [EMULATION / "cpu.cpp" if one.name == "cpu.cpp" else one for one in sources]
        # Contracting a product and a sum to one rounding is the intrinsics' business.
        flags = (*flags, "-ffp-contract=off", "-Wno-psabi", f"-I{EMULATION}", f"-I{SOURCES}")
        options["instructions"] = {}
    builder().build(target, sources, compiler=compiler, flags=flags, **options)
    return target


def load_kernels(file: Path) -> ModuleType:
    """The module of a file, beside the one that the package has chosen."""
    return _load("asyncgen.native._kernels", file)


def library_of(name: str) -> str:
    """The file of one of GCC's libraries."""
    command = ["g++", f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def _load(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
