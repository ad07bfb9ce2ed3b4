"""Buckets and biases of distances, against the reference and against each other."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from asyncgen.models.attention.relative import RelativeBias, bucket

transformers = pytest.importorskip("transformers")


@settings(max_examples=40, deadline=None)
@given(
    both_ways=st.booleans(),
    num_buckets=st.sampled_from([4, 8, 10, 32, 64]),
    max_distance=st.sampled_from([40, 128, 1000]),
)
def test_buckets_equal_the_reference(both_ways: bool, num_buckets: int, max_distance: int) -> None:
    from transformers.models.t5.modeling_t5 import T5Attention

    distances = torch.arange(-1500, 1500)
    expected = T5Attention._relative_position_bucket(
        distances, both_ways, num_buckets=num_buckets, max_distance=max_distance
    )
    found = bucket(
        distances, both_ways=both_ways, num_buckets=num_buckets, max_distance=max_distance
    )
    assert torch.equal(found, expected)


@pytest.mark.parametrize("both_ways", [False, True])
def test_rows_are_looked_up_by_distance(both_ways: bool) -> None:
    table = torch.randn(8, 3)
    bias = RelativeBias(table, both_ways=both_ways, max_distance=20)
    for start, end in ((0, 5), (4, 5), (2, 9), (0, 1), (199, 200), (150, 300), (6, 7)):
        found = bias.rows(start, end)
        assert found.shape == (1, 3, end - start, end)
        for query in range(start, end):
            rows = bucket(
                torch.arange(end) - query, both_ways=both_ways, num_buckets=8, max_distance=20
            )
            assert torch.equal(found[0, :, query - start], table[rows].T)


def test_a_step_makes_no_new_tensor() -> None:
    bias = RelativeBias(torch.randn(8, 2), both_ways=False, max_distance=20)
    first = bias.rows(9, 10)
    assert first.untyped_storage().data_ptr() == bias.rows(10, 11).untyped_storage().data_ptr()
