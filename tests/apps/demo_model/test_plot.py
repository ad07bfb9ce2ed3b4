"""The loss plot."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncgen_apps.demo_model.plot import plot_losses

if TYPE_CHECKING:
    from pathlib import Path


def test_a_small_picture_is_written(tmp_path: Path) -> None:
    path = tmp_path / "loss.png"
    plot_losses([(1, 5.0), (2, 3.0)], [(2, 3.5)], path)
    assert path.read_bytes().startswith(b"\x89PNG")
    assert path.stat().st_size < 60_000
