"""Huge pages are asked for; their content does not change."""

from __future__ import annotations

import ctypes
import sys
from typing import Any

import pytest
import torch

from asyncgen.models.kernels import huge_pages
from asyncgen.models.kernels.huge_pages import PAGE, gather_pages


def test_every_page_that_some_memory_touches_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(huge_pages, "_advise", lambda: lambda *args: asked.append(args))
    gather_pages(3 * PAGE + 5, PAGE)
    assert asked == [(3 * PAGE, PAGE, 25), (4 * PAGE, PAGE, 25)]
    gather_pages(3 * PAGE, PAGE)
    assert asked[2:] == [(3 * PAGE, PAGE, 25)]
    gather_pages(3 * PAGE, PAGE // 4 - 1)
    assert len(asked) == 3


def test_gather_pages_keeps_the_contents() -> None:
    numbers = torch.arange(3 * PAGE, dtype=torch.int32)
    gather_pages(numbers.data_ptr(), numbers.nbytes)
    assert torch.equal(numbers, torch.arange(3 * PAGE, dtype=torch.int32))


@pytest.mark.parametrize("system", ["darwin", "win32"])
def test_other_systems_are_left_alone(monkeypatch: pytest.MonkeyPatch, system: str) -> None:
    monkeypatch.setattr(sys, "platform", system)
    assert huge_pages._advise.__wrapped__() is None


def test_a_library_without_the_call_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert huge_pages._advise.__wrapped__() is None
    monkeypatch.setattr(huge_pages, "_advise", lambda: None)
    gather_pages(0, PAGE)
