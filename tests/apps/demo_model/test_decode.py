"""Sampling with cached keys and values."""

from __future__ import annotations

import torch

from asyncgen_apps.demo_model.decode import CUT_OFF, CachedBatch, answerer, complete, pick
from asyncgen_apps.demo_model.network import Network, NetworkConfig
from asyncgen_apps.demo_model.tokenizer import train_tokenizer

CONFIG = NetworkConfig(
    vocab_size=600, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, context=64
)


def _network() -> Network:
    torch.manual_seed(0)
    return Network(CONFIG).eval()


def test_cache_and_padding_do_not_change_logits() -> None:
    network = _network()
    long, short = torch.randint(0, 600, (1, 9)), torch.randint(0, 600, (1, 6))
    padded = torch.cat((long, torch.cat((torch.zeros(1, 3, dtype=torch.long), short), 1)))
    batch = CachedBatch(network, torch.tensor([0, 3]))
    with torch.no_grad():
        batch.forward(padded[:, :5])
        for index in range(5, 9):
            last = batch.forward(padded[:, index : index + 1])
        torch.testing.assert_close(last[0], network(long)[0, -1], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(last[1], network(short)[0, -1], atol=1e-5, rtol=1e-5)


def test_pick_respects_temperature_and_top_p() -> None:
    logits = torch.tensor([[0.0, 3.0, 2.9, -5.0]]).repeat(60, 1)
    chance = torch.Generator().manual_seed(0)
    assert set(pick(logits, 0.0, 1.0, chance).tolist()) == {1}
    assert set(pick(logits, 1.0, 0.9, chance).tolist()) == {1, 2}
    assert set(pick(logits, 1.0, 0.1, chance).tolist()) == {1}


def test_a_completion_stays_within_the_context() -> None:
    chance = torch.Generator().manual_seed(0)
    drawn = complete(_network(), [[1, 5, 300], [1, 7]], chance, limit=500)
    assert len(drawn) == 2
    assert all(0 < len(ids) <= CONFIG.context - 3 for ids in drawn)


def test_cut_off_answer_ends_with_the_mark() -> None:
    answer = answerer(_network(), train_tokenizer(1, 600, 40), seed=0, temperature=0.0, rows=1)
    answers = answer([[{"role": "user", "content": "Hi"}]] * 2)
    assert answers[0] == answers[1]
    assert answers[0].endswith(CUT_OFF)
