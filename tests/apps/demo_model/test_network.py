"""The network's shape, names and causality."""

from __future__ import annotations

import torch

from asyncgen_apps.demo_model.network import Network, NetworkConfig

CONFIG = NetworkConfig(
    vocab_size=300, hidden_size=32, intermediate_size=48, layers=2, heads=4, kv_heads=2, context=64
)


def test_parameters_are_named_as_in_hugging_face() -> None:
    names = set(Network(CONFIG).state_dict())
    assert "model.embed_tokens.weight" in names
    assert "model.layers.1.self_attn.k_proj.weight" in names
    assert "model.layers.0.mlp.gate_proj.weight" in names
    assert "model.norm.weight" in names
    assert len(names) == 2 + 9 * CONFIG.layers


def test_later_tokens_do_not_change_earlier_scores() -> None:
    torch.manual_seed(0)
    network = Network(CONFIG).eval()
    ids = torch.randint(0, 300, (1, 12))
    changed = ids.clone()
    changed[0, -1] = (changed[0, -1] + 1) % 300
    with torch.no_grad():
        torch.testing.assert_close(network(ids)[:, :-1], network(changed)[:, :-1])


def test_only_weighted_targets_count() -> None:
    torch.manual_seed(0)
    network = Network(CONFIG)
    ids = torch.randint(0, 300, (2, 9))
    weights = torch.zeros(2, 8)
    weights[:, 3] = 1.0
    targets = ids[:, 1:].clone()
    first = network.loss(ids[:, :-1], targets, weights)
    targets[:, 5] = 0
    assert torch.equal(first, network.loss(ids[:, :-1], targets, weights))


def test_the_shipped_shape_fits_twelve_megabytes() -> None:
    count = sum(parameter.numel() for parameter in Network(NetworkConfig()).parameters())
    assert count * 4 < 12_000_000
