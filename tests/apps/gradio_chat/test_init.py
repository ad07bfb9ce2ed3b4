"""The package shows what an application needs, and reports nothing."""

from __future__ import annotations

import asyncgen_apps.gradio_chat


def test_exports() -> None:
    assert asyncgen_apps.gradio_chat.__all__ == ["build_chat", "launch_options"]
