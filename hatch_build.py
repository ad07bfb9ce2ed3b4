"""Compiles the kernels of `asyncgen.native` where there is a compiler for them.

Without one, or on another system than Linux on x86-64, the package is built without them and
computes with torch's own kernels. ``ASYNCGEN_NATIVE=0`` leaves them out, ``ASYNCGEN_NATIVE=1``
makes a failure to compile an error.
"""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension

MODULE = "asyncgen.native._kernels"
SOURCES = "asyncgen/native/src"
FLAGS = ["-std=c++17", "-O3", "-fopenmp", "-fvisibility=hidden", "-g0", "-Wall"]
# GCC 12 takes its own intrinsics for uses of what was never set.
QUIET = ["-Wno-maybe-uninitialized", "-Wno-uninitialized"]


class NativeKernels(BuildHookInterface):
    """Builds the extension module next to its Python package."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel, or the editable installation, is put together."""
        wanted = os.environ.get("ASYNCGEN_NATIVE", "")
        if self.target_name != "wheel" or wanted == "0":
            return
        here = sys.platform == "linux" and platform.machine() in ("x86_64", "AMD64")
        if not here and wanted != "1":
            return
        built = compile_kernels(Path(self.root), required=wanted == "1")
        if built is not None:
            build_data["artifacts"].append(built.relative_to(self.root).as_posix())
            build_data["infer_tag"] = True
            build_data["pure_python"] = False


def compile_kernels(root: Path, *, required: bool) -> Path | None:
    """Compile the extension module into the package.

    Args:
        root: The project's folder.
        required: Whether a failure is an error; otherwise it is a warning of the compiler's.

    Returns:
        The module, or ``None`` if it could not be compiled.
    """
    sources = sorted(path.relative_to(root).as_posix() for path in (root / SOURCES).glob("*.cpp"))
    extension = Extension(
        MODULE,
        sources,
        extra_compile_args=[*FLAGS, *QUIET],
        extra_link_args=["-fopenmp"],
        language="c++",
        optional=not required,
    )
    before = Path.cwd()
    os.chdir(root)
    try:
        command = Distribution({"ext_modules": [extension]}).get_command_obj("build_ext")
        command.inplace = True
        command.force = True
        command.parallel = os.cpu_count()
        command.ensure_finalized()
        command.run()
        built = root / command.get_ext_filename(MODULE)
    finally:
        os.chdir(before)
    return built if built.exists() else None
