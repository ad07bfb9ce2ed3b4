"""The kernels compiled in other ways, and their tests run on each: sanitizers, and clang.

Emulated builds run anywhere; those with the real instructions only where the processor has them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from asyncgen import native
from tests.native.build import (
    CHECKED,
    ROOT,
    SANITIZED,
    build_kernels,
    builder,
    library_of,
    needs_compiler,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = needs_compiler

CLANG = next(
    (found for name in ("clang++", "clang++-14") if (found := shutil.which(name)) is not None), None
)

NATIVE_TESTS = (
    "tests/models/attention/paged/test_native_attention.py",
    "tests/models/kernels/test_native_linear.py",
    "tests/models/kernels/test_norm.py",
    "tests/models/kernels/test_rope.py",
    "tests/models/test_batch_exactness.py",
    "tests/models/kernels/test_compiled_layers.py",
    "tests/models/kernels/test_experts.py",
    "tests/families/arch/test_latent.py",
    "tests/models/mixers/test_native_mixer.py",
)


def run_tests(kernels: Path, tests: tuple[str, ...], **environ: str) -> None:
    """Run tests in a process of their own, with these kernels."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-n", "0", "--timeout", "3600", *tests]
    done = subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, "ASYNCGEN_KERNELS": str(kernels), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
    assert " passed" in done.stdout


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("is_emulated", [True, False], ids=["emulated", "real"])
def test_sanitizers_find_nothing(is_emulated: bool, tmp_path: Path) -> None:
    if not is_emulated and native.kernels is None:
        pytest.skip("the processor lacks the instructions")
    kernels = build_kernels(tmp_path, SANITIZED, is_emulated=is_emulated)
    # The sanitizers' libraries come first in a process that was not compiled with them. Python
    # keeps memory until it ends, which is no leak.
    names = ("libasan.so", "libubsan.so", "libstdc++.so")
    run_tests(
        kernels,
        NATIVE_TESTS,
        LD_PRELOAD=" ".join(library_of(name) for name in names),
        ASAN_OPTIONS="detect_leaks=0",
        UBSAN_OPTIONS="halt_on_error=1:print_stacktrace=1",
    )


@pytest.mark.soak
@pytest.mark.timeout(3600)
@pytest.mark.skipif(CLANG is None, reason="clang is not installed")
@pytest.mark.parametrize("is_emulated", [True, False], ids=["emulated", "real"])
def test_clang_compiles_them_too(is_emulated: bool, tmp_path: Path) -> None:
    assert CLANG is not None
    kernels = build_kernels(tmp_path, CHECKED, is_emulated=is_emulated, compiler=CLANG)
    if is_emulated or native.kernels is not None:
        # One thread: LLVM's would wait for torch's on the same processors.
        run_tests(kernels, NATIVE_TESTS[1:4], OMP_NUM_THREADS="1")


@pytest.mark.skipif(CLANG is None, reason="clang is not installed")
def test_the_package_is_not_built_by_clang(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", str(CLANG))
    with pytest.raises(RuntimeError, match="OpenMP threads are not torch's"):
        builder().find_compiler()


def test_a_compiler_that_fails_is_quoted(tmp_path: Path) -> None:
    broken = tmp_path / "broken.cpp"
    broken.write_text("int nothing() { return missing; }\n", encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"missing.* was not declared"):
        builder().build(tmp_path / "out.so", [broken], compiler="g++")
