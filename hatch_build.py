"""Compiles the kernels of `asyncgen.native` where there is a compiler for them.

Without one, or on another system than Linux on x86-64, the package is built without them and
computes with torch's own kernels. ``ASYNCGEN_NATIVE=0`` leaves them out, ``ASYNCGEN_NATIVE=1``
makes a failure to compile an error. ``CXX`` names another compiler; ``python hatch_build.py``
compiles into a checkout.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # the tests compile without building a package
    BuildHookInterface = object

FOLDER = "asyncgen/native"
# As Python's own extensions are compiled, `-fwrapv` too: GCC unrolls more of the loops with it.
FLAGS = ("-std=c++17", "-fPIC", "-fwrapv", "-fopenmp", "-fvisibility=hidden", "-Wall", "-Wextra")
# GCC 12 takes its own intrinsics for uses of what was never set.
QUIET = ("-Wno-maybe-uninitialized", "-Wno-uninitialized", "-Wno-unknown-warning-option")

# Which files use which instructions; all others run on any processor, and ask what it has.
AVX512 = ("-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mfma")
AVX512_BF16 = (*AVX512, "-mavx512bf16")
# Values that are looked up, or scaled, are those of the plain formula, rounded after each
# operation.
AVX512_VNNI = (*AVX512, "-mavx512vnni", "-ffp-contract=off")
AMX = (*AVX512_BF16, "-mamx-tile", "-mamx-bf16")
INSTRUCTIONS: Mapping[str, Sequence[str]] = {
    "attention_amx.cpp": AMX,
    "attention_bf16.cpp": AVX512_BF16,
    "attention_codes.cpp": AVX512_VNNI,
    "attention_f32.cpp": AVX512,
    "convolution.cpp": AVX512,
    "delta.cpp": AVX512,
    "experts.cpp": AVX512,
    "gates.cpp": AVX512,
    "griffin.cpp": AVX512,
    "lightning.cpp": AVX512,
    "linear_bf16.cpp": AMX,
    "linear_f32.cpp": AVX512,
    "linear_packed.cpp": AVX512_VNNI,
    "rows.cpp": AVX512,
    "scan.cpp": AVX512,
}


class NativeKernels(BuildHookInterface):  # type: ignore[misc]
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
        required: Whether a failure is an error; otherwise it is a warning.

    Returns:
        The module, or ``None`` if it could not be compiled.
    """
    target = root / FOLDER / f"_kernels{sysconfig.get_config_var('EXT_SUFFIX')}"
    try:
        build(target, sorted((root / FOLDER / "src").glob("*.cpp")), compiler=find_compiler())
    except (RuntimeError, OSError) as error:
        if required:
            raise
        sys.stderr.write(f"warning: asyncgen is built without kernels of its own: {error}\n")
        return None
    return target


def find_compiler() -> str:
    """The compiler that the package is built with: ``CXX``, or GCC.

    Raises:
        RuntimeError: There is none, or it is clang. clang's code would ask LLVM's OpenMP how many
            threads there are, and keep that from computing beside ours; torch's threads are GNU's.
    """
    compiler = os.environ.get("CXX") or shutil.which("g++") or shutil.which("c++")
    if compiler is None:
        raise RuntimeError("there is no C++ compiler: neither g++ nor c++ is found")
    if "clang" in run([*compiler.split(), "--version"]).lower():
        raise RuntimeError(f"{compiler} is clang, whose OpenMP threads are not torch's; use GCC")
    return compiler


def build(
    target: Path,
    sources: Sequence[Path],
    *,
    compiler: str,
    flags: Sequence[str] = ("-O3", "-DNDEBUG"),
    instructions: Mapping[str, Sequence[str]] = INSTRUCTIONS,
) -> None:
    """Compile an extension module.

    Args:
        target: The file to make.
        sources: C++ files.
        compiler: GCC or clang, and what it is always called with.
        flags: For compiling and linking.
        instructions: Further flags of some files, by their names.

    Raises:
        RuntimeError: It does not compile; with what the compiler said.
    """
    command = [*compiler.split(), *FLAGS, *QUIET, *flags]
    include = f"-I{sysconfig.get_path('include')}"
    with tempfile.TemporaryDirectory() as folder:
        objects = [Path(folder, f"{source.stem}.o") for source in sources]

        def compile_one(source: Path, to: Path) -> None:
            own = instructions.get(source.name, ())
            run([*command, *own, include, "-c", str(source), "-o", str(to)])

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_one, sources, objects))
        run([*command, "-shared", *map(str, objects), "-o", str(target)])


def run(command: Sequence[str]) -> str:
    """Run a program, which must succeed; return its output."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr[-4000:]}")
    if done.stderr:
        sys.stderr.write(done.stderr)
    return done.stdout


if __name__ == "__main__":
    compile_kernels(Path(__file__).parent, required=True)
