"""Collect tests of installed clients only, unless they are asked for."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING

from tests.apps.openai_http.clients import PACKAGES

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Plain ``pytest`` needs no client; ``pytest -m clients`` fails where one is missing."""
    packages = PACKAGES.get(collection_path.stem.removeprefix("test_"), ())
    if config.option.markexpr.startswith("clients"):
        return None
    try:
        for package in packages:
            version(package)
    except PackageNotFoundError:
        return True
    return None
