"""Layers are dealt out to groups of about equal size, each of one kind."""

from __future__ import annotations

from asyncgen.cache.layer_groups import GroupKind, most_blocks, plan_groups
from asyncgen.cache.paged_storage import PagedStorage
from asyncgen.families.config import ModelConfig
from tests.cases import for_each
from tests.models.build import random_config

FULL, SLIDING = "full_attention", "sliding_attention"


def config(layer_types: list[str], window: int = 8) -> ModelConfig:
    return ModelConfig.from_hf(
        random_config(
            "qwen2",
            num_hidden_layers=len(layer_types),
            use_sliding_window=SLIDING in layer_types,
            sliding_window=window,
            layer_types=layer_types,
        )
    )


def one_in_six(layers: int) -> list[str]:
    """The layers of a model of the Gemma 3 kind."""
    return [SLIDING if (number + 1) % 6 else FULL for number in range(layers)]


def test_layers_that_are_alike_are_one_group() -> None:
    plan = plan_groups(ModelConfig.from_hf(random_config("llama")))
    assert (plan.depth, plan.windows) == (3, (None,))
    assert plan.places() == [(0, 0), (0, 1), (0, 2)]
    plan = plan_groups(ModelConfig.from_hf(random_config("mistral", sliding_window=5)))
    assert (plan.depth, plan.windows) == (3, (5,))


@for_each(
    ("layers", "depth", "full", "sliding"),
    [(6, 1, 1, 5), (18, 3, 1, 5), (26, 4, 1, 6), (34, 5, 1, 6), (48, 8, 1, 5), (62, 10, 1, 6)],
)
def test_one_full_layer_in_six(layers: int, depth: int, full: int, sliding: int) -> None:
    plan = plan_groups(config(one_in_six(layers)))
    assert plan.depth == depth
    assert plan.windows == (None,) * full + (8,) * sliding
    kinds = [group.kind for group in plan.groups]
    assert kinds == [GroupKind.FULL] * full + [GroupKind.WINDOW] * sliding
    assert sorted(layer for group in plan.groups for layer in group.layers) == list(range(layers))
    assert max(len(group.layers) for group in plan.groups) <= depth


@for_each("full", range(1, 12))
@for_each("sliding", range(1, 12))
def test_little_of_a_page_is_unused(full: int, sliding: int) -> None:
    plan = plan_groups(config([FULL] * full + [SLIDING] * sliding))
    for kind, count in ((GroupKind.FULL, full), (GroupKind.WINDOW, sliding)):
        places = plan.depth * sum(group.kind is kind for group in plan.groups)
        assert places >= count
        if kind is GroupKind.FULL:
            assert places <= 1.13 * count
    assert plan.depth * len(plan.groups) <= 1.23 * (full + sliding)


def test_layers_of_several_groups_share_memory() -> None:
    storage = PagedStorage(config([SLIDING, FULL, SLIDING, FULL]), 5, 4)
    assert storage.data.shape[0] == 2 and len(storage.layers) == 4
    assert storage.layers[0].data_ptr() == storage.layers[1].data_ptr()
    assert storage.layers[0].data_ptr() != storage.layers[2].data_ptr()
    assert storage.plan.places() == [(1, 0), (0, 0), (1, 1), (0, 1)]


@for_each("page_size", [1, 2, 5])
@for_each("count", [1, 2, 5, 6, 11])
def test_blocks_that_positions_touch(count: int, page_size: int) -> None:
    touched = [len({(begin + n) // page_size for n in range(count)}) for begin in range(page_size)]
    assert most_blocks(count, page_size) == max(touched)


def test_a_token_sees_no_more_pages_than_its_windows_touch() -> None:
    assert plan_groups(config([SLIDING, FULL])).blocks_seen(100, 4) == 100
    mistral = plan_groups(ModelConfig.from_hf(random_config("mistral", sliding_window=8)))
    assert mistral.blocks_seen(100, 4) == 3 and mistral.blocks_seen(2, 4) == 2
