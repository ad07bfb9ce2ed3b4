"""Our own kernels: machines that run them, and how to turn them off. Tests in models check
results."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import pytest
import torch

from asyncgen import native


def _are_compiled() -> bool:
    """Return whether they could run here, in any environment."""
    try:
        from asyncgen.native import _kernels
    except ImportError:
        return False
    return _kernels.features()["avx512"]


def test_without_kernels_no_dtype_is_supported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernels", None)
    assert not native.supports(torch.float32)
    assert not native.supports(torch.bfloat16)


@pytest.mark.gate
@pytest.mark.parametrize(
    ("chosen", "allowed"), [("torch", False), pytest.param("", True, marks=pytest.mark.gate)]
)
def test_the_environment_turns_them_off(chosen: str, allowed: bool) -> None:
    code = "from asyncgen import native; print(native.kernels is not None)"
    environ = {**os.environ, "ASYNCGEN_KERNELS": chosen}
    found = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(allowed and _are_compiled())


@pytest.mark.gate
def test_other_values_are_refused() -> None:
    environ = {**os.environ, "ASYNCGEN_KERNELS": "fast"}
    code = "from asyncgen import native"
    found = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False
    )
    assert found.returncode != 0
    assert "ASYNCGEN_KERNELS" in found.stderr


@pytest.mark.skipif(native.kernels is None, reason="our own kernels do not run here")
def test_kernels_count_their_arguments() -> None:
    assert native.kernels is not None
    norm = native.kernels.Norm(
        torch.ones(1, 4), None, eps=1e-6, dtype=torch.float32, is_centred=False
    )
    with pytest.raises(TypeError, match="2 arguments expected, got 1"):
        norm.into(torch.ones(1, 4))
    with pytest.raises(AttributeError):
        norm.into("abcd", "efgh")


def test_cpu_kernels_names_the_kernels_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "kernels", None)
    assert native.cpu_kernels() == "torch"
    for features, said in (
        ({"avx512_bf16": True, "amx_bf16": True}, "bfloat16: AMX"),
        ({"avx512_bf16": True, "amx_bf16": False}, "bfloat16: AVX-512"),
        ({"avx512_bf16": False, "amx_bf16": False}, "bfloat16: torch"),
    ):
        fake = SimpleNamespace(features=lambda features=features: {"avx512": True, **features})
        monkeypatch.setattr(native, "kernels", fake)
        assert said in native.cpu_kernels()
