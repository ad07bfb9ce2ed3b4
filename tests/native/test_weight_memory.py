"""Memory for weights: used by weights alone, and freed with the last of them."""

from __future__ import annotations

import gc

import pytest
import torch

from asyncgen.native import weight_memory as memory


def test_tensors_lie_side_by_side_and_do_not_overlap() -> None:
    made = [memory.empty_weight((3, count), torch.float32) for count in (1, 7, 100)]
    made.append(memory.empty_weight((5,), torch.bfloat16))
    for number, tensor in enumerate(made):
        tensor.fill_(number)
    for number, tensor in enumerate(made):
        assert (tensor == number).all()
        assert tensor.data_ptr() % memory.LINE == 0


def test_the_memory_goes_with_the_last_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_chunk", None)
    first, second = (memory.empty_weight((10,), torch.float32) for _ in range(2))
    chunk = memory._chunk
    assert chunk is not None
    del first
    gc.collect()
    assert chunk() is not None
    second.fill_(1)
    del second
    gc.collect()
    assert chunk() is None
    assert memory.empty_weight((1,), torch.float32).fill_(2).item() == 2


def test_a_full_chunk_is_followed_by_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "CHUNK", 4096)
    monkeypatch.setattr(memory, "_chunk", None)
    made = [memory.empty_weight((300,), torch.float32).fill_(number) for number in range(9)]
    made.append(memory.empty_weight((5000,), torch.float32).fill_(9))
    for number, tensor in enumerate(made):
        assert (tensor == number).all()


@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (600, 500)])
def test_passing_tensors(shape: tuple[int, ...]) -> None:
    made = memory.empty_temporary(shape, torch.float32)
    assert made.shape == shape
    assert made.dtype == torch.float32
    assert (made.fill_(2) == 2).all()
