"""Ordinary code for the reference gives the same with its import line changed, and nothing else.

Every function of the files beside this one is such a piece of code, in the manner of the reference
documents and of what is published on them. It is run twice, as it stands and with
``from transformers import`` made ``from asyncgen import``, on the same small checkpoints.
"""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.snippets.folders import save_all
from tests.snippets.running import FILES, GONE, RECORDED, load, names

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytest.importorskip("transformers")

SNIPPETS = [(path, name) for path in FILES for name in names(path)]


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_all(tmp_path_factory.mktemp("hub"))


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Ignore warnings about defaults on both sides."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def assert_alike(ours: Any, theirs: Any, place: str = "result") -> None:
    """Same structure, tokens, texts and shapes; scores within the noise of float32."""
    if isinstance(theirs, torch.Tensor) or hasattr(theirs, "dtype"):
        found, expected = torch.as_tensor(ours), torch.as_tensor(theirs)
        noise = 2e-4 if expected.is_floating_point() else 0.0
        torch.testing.assert_close(
            found, expected, atol=noise, rtol=noise, msg=lambda text: f"{place}: {text}"
        )
    elif isinstance(theirs, dict):
        assert ours.keys() == theirs.keys(), place
        for key, value in theirs.items():
            assert_alike(ours[key], value, f"{place}[{key!r}]")
    elif isinstance(theirs, list | tuple):
        assert len(ours) == len(theirs), place
        for index, value in enumerate(theirs):
            assert_alike(ours[index], value, f"{place}[{index}]")
    else:
        assert ours == theirs, place


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("path", "name"), SNIPPETS, ids=[name for _, name in SNIPPETS])
def test_same_with_the_import_changed(path: Path, name: str, hub: Path) -> None:
    theirs = getattr(load(path, "transformers"), name)(hub)
    assert theirs is not None
    assert_alike(getattr(load(path, "asyncgen"), name)(hub), theirs)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", names(GONE))
def test_same_as_in_the_release_that_still_had_it(name: str, hub: Path) -> None:
    theirs = json.loads(RECORDED.read_text("utf-8"))[name]
    assert_alike(getattr(load(GONE, "asyncgen"), name)(hub), theirs)


def test_there_are_enough_of_them() -> None:
    assert len(SNIPPETS) >= 40


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (torch.tensor([1, 2]), torch.tensor([1, 3])),
        (torch.zeros(2), torch.zeros(2) + 0.01),
        (torch.zeros(2), torch.zeros(3)),
        (("a", 1), ("a", 2)),
        ({"a": 1}, {"b": 1}),
        ([1], [1, 2]),
    ],
)
def test_the_comparison_can_fail(ours: Any, theirs: Any) -> None:
    assert_alike(theirs, theirs)
    with pytest.raises(AssertionError):
        assert_alike(ours, theirs)
