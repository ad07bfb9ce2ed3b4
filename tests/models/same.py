"""Compare two ways of computing, to the last bit or within rounding."""

from __future__ import annotations

import torch

from asyncgen import native


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Compare bit for bit with our kernels; torch's products round by how many rows there are."""
    if native.supports(torch.float32):
        assert torch.equal(found, expected)
    else:
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
