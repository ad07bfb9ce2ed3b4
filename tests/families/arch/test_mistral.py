"""Peculiarities of Mistral; the laws that it shares with the others are in ``test_decoder.py``."""

from __future__ import annotations

import pytest
import torch

from tests.models.build import all_logits, random_ids, random_pair


@pytest.mark.parametrize("window", [1, 4, 12, 13, None])
def test_every_layer_slides(window: int | None) -> None:
    reference, core = random_pair("mistral", sliding_window=window)
    ids = random_ids(1, 12)
    with torch.no_grad():
        expected = reference(ids).logits
    torch.testing.assert_close(all_logits(core, ids), expected, atol=1e-5, rtol=0)
