"""Every code block of the reference documents runs with its import line changed.

Where the reference still runs it, both give the same texts, tokens and scores. The checkpoints are
tiny, random, and lie in folders of the names that the blocks load.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.documented.blocks import Block, blocks, find, run
from tests.documented.checkpoints import save_all
from tests.documented.differences import NOT_YET
from tests.snippets.test_snippets import assert_alike

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BROKEN = {
    "autoregressive_generation:134": "the import line is cut off",
    "generation_utilities:926": "`sequence_bias` is flat where its page asks for a list of pairs",
    "generation_utilities:1730": "a fragment whose `constraint` is not made, nor has two results",
    "generation_utilities:1761": "the same fragment again",
}
"""Blocks that no release of the reference runs."""

SOUND_OR_PICTURES = {
    "autoregressive_generation:118",
    "generation_utilities:160",
    "generation_utilities:972",
    "generation_utilities:1006",
    "generation_utilities:1357",
    "generation_utilities:2383",
}
"""Blocks that need a model of sound, or a picture of the network."""

GOES_ON = {
    "autoregressive_generation:90": "autoregressive_generation:78",
    "autoregressive_generation:101": "autoregressive_generation:90",
    "generate_overview:101": "generate_overview:83",
    "generate_overview:110": "generate_overview:101",
    "generate_overview:120": "generate_overview:110",
    "generation_strategies:347": "generation_strategies:329",
    "generation_utilities:57": "generation_utilities:29",
}
"""Blocks that use names of the block before."""

RUNS = [
    block.place for block in blocks() if block.place not in {*BROKEN, *SOUND_OR_PICTURES, *NOT_YET}
]

OTHERWISE = {
    "text_generation_api:89": "its release returns no unused arguments; the page has them",
}
"""Blocks whose output differs from the reference's, with the reason."""


NO_LONGER = (
    "cannot import name",  # removed since
    "trust_remote_code",  # moved to code on the hub
    "`accelerate`",  # a package that is not here
    "inconsistent leading BOS",  # its detector refuses padding that is the first token's id, too
)
"""Errors of the newer releases of the reference for blocks of its own documents."""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_all(tmp_path_factory.mktemp("hub"))


@pytest.fixture(autouse=True)
def inside(hub: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Work where a repository's name is a path, without warnings about defaults."""
    monkeypatch.chdir(hub)
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def run_page(block: Block, library: str) -> list[Any]:
    """Run a block after those that it goes on from; return what it shows."""
    chain = [block]
    while chain[0].place in GOES_ON:
        chain.insert(0, find(GOES_ON[chain[0].place]))
    names: dict[str, Any] = {}
    shown: list[Any] = []
    for part in chain:
        torch.manual_seed(0)
        shown = run(part, library, names)
    return shown


def plain(value: Any) -> bool:
    """Tell whether a value can be compared: texts, numbers, tensors and what holds them."""
    if isinstance(value, list | tuple):
        return all(map(plain, value))
    return isinstance(value, str | bool | int | float | dict | torch.Tensor | np.ndarray)


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", RUNS)
def test_a_block_gives_what_the_reference_gives(place: str) -> None:
    ours = run_page(find(place), "asyncgen")
    assert all(plain(one) or type(one).__name__ in find(place).code for one in ours)
    try:
        theirs = run_page(find(place), "transformers")
    except (ImportError, ValueError) as error:
        assert any(reason in str(error) for reason in NO_LONGER), error
        return
    if place not in OTHERWISE:
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            if plain(other):
                assert_alike(one, other)


@pytest.mark.gate
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", NOT_YET)
def test_a_block_of_the_list_does_not_run_yet(place: str) -> None:
    with pytest.raises(Exception):  # noqa: B017
        run_page(find(place), "asyncgen")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", BROKEN)
def test_a_broken_block_is_refused(place: str) -> None:
    with pytest.raises((SyntaxError, NameError, ValueError)):
        run_page(find(place), "asyncgen")


PLAIN = ["generation_strategies:105", "generation_utilities:1916", "text_generation_api:89"]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("place", PLAIN)
def test_a_block_runs(place: str) -> None:
    """Three of them without the reference, in every run of the tests."""
    assert run_page(find(place), "asyncgen")


def test_every_block_of_the_documents_is_listed() -> None:
    places = {block.place for block in blocks()}
    assert len(places) == len(blocks()) == 77
    lists = [BROKEN, SOUND_OR_PICTURES, NOT_YET, GOES_ON, OTHERWISE]
    assert all({*one} <= places for one in lists)
    assert len(BROKEN) == 4
