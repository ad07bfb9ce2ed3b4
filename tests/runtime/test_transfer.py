"""Numbers arrive as they are, on any device."""

from __future__ import annotations

import pytest
import torch

from asyncgen.runtime.transfer import Readback, to_device


def test_on_a_cpu_nothing_is_copied() -> None:
    values = torch.arange(6).view(2, 3)
    assert to_device(values, torch.device("cpu")) is values
    assert Readback(values).wait() is values


@pytest.mark.cuda
def test_to_a_device_and_back_while_it_is_busy() -> None:
    device = torch.device("cuda")
    for number in range(50):
        values = torch.arange(6, dtype=torch.int32) + number
        there = to_device(values, device)
        values.zero_()  # what was sent is what it was then
        back = Readback(there * 2)
        there.zero_()
        assert back.wait().tolist() == [2 * (number + place) for place in range(6)]
