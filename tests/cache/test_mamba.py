"""The states of state-space models, kept as documented."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from asyncgen.cache.mamba import MambaCache
from asyncgen.errors import InvalidRequestError
from tests.cache.old import counted, expected

SHAPE = SimpleNamespace(num_hidden_layers=2, intermediate_size=3, state_size=5, conv_kernel=4)


def test_inputs_are_shifted_in() -> None:
    cache = MambaCache(SHAPE, max_batch_size=1, dtype=torch.float32)
    assert (cache.intermediate_size, cache.ssm_state_size, cache.conv_kernel_size) == (3, 5, 4)
    assert [state.shape for state in cache.conv_states] == [(1, 3, 4)] * 2
    whole = torch.arange(10.0).expand(1, 3, 10)
    cache.update_conv_state(1, whole[:, :, :4], torch.arange(4))
    assert cache.conv_states[1][0, 0].tolist() == [0, 1, 2, 3]
    for position in range(4, 10):
        new = whole[:, :, position : position + 1]
        found = cache.update_conv_state(1, new, torch.tensor([position]))
        assert found[0, 0].tolist() == list(range(position - 3, position + 1))
    assert not cache.conv_states[0].any()


def test_states_are_replaced_and_forgotten() -> None:
    cache = MambaCache(SHAPE, batch_size=2)
    state = torch.randn(2, 3, 5, dtype=torch.float16)
    assert torch.equal(cache.update_ssm_state(0, state), state)
    before = cache.ssm_states[0].data_ptr()
    cache.reset()
    assert not cache.ssm_states[0].any()
    assert cache.ssm_states[0].data_ptr() == before


def test_more_precision_is_kept() -> None:
    cache = MambaCache(SHAPE, 1)
    exact = torch.full((1, 3, 5), 1.0001)
    found = cache.update_ssm_state(1, exact)
    assert torch.equal(found, exact) and found is not exact
    assert cache.ssm_states[1] is found
    assert (cache.dtype, cache.ssm_states[0].dtype) == (torch.float16, torch.float16)


def test_rows_are_needed() -> None:
    with pytest.raises(InvalidRequestError, match="max_batch_size"):
        MambaCache(SHAPE)
    with pytest.raises(InvalidRequestError, match="`batch_size` is 2: max_batch_size is 1"):
        MambaCache(SHAPE, 2, max_batch_size=1)


def test_states_are_those_of_the_reference() -> None:
    theirs, shape = expected()["mamba"], SimpleNamespace(**expected()["mamba_shape"])
    cache = MambaCache(shape, 2, torch.float32, "cpu")
    assert theirs["attributes"].items() <= vars(cache).items()
    states = (cache.conv_states, cache.ssm_states)
    assert [list(each[0].shape) for each in states] == theirs["shapes"]
    inputs = counted(0, 12)[..., 0].expand(2, 2, 12)
    found = [cache.update_conv_state(1, inputs[..., :4], torch.arange(4)).tolist()]
    for position in (4, 5, 2, 9):
        new = inputs[..., position : position + 1]
        found.append(cache.update_conv_state(1, new, torch.tensor([position])).tolist())
    assert found == theirs["conv"]
    exact = torch.full((2, 2, 3), 1.25, dtype=torch.float64)
    ssm = cache.update_ssm_state(0, exact)
    assert (ssm.tolist(), str(ssm.dtype)) == (theirs["ssm"], theirs["ssm_dtype"])
    cache.reset()
    left = (*cache.conv_states, *cache.ssm_states)
    assert [int(each.count_nonzero()) for each in left] == theirs["reset"]
