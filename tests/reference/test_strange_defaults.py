"""A `generation_config.json` of a stranger: what is no number, or costs each request time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import asyncgen
from asyncgen.errors import ModelLoadError
from asyncgen.generation.config.checks import MOST_LISTS, MOST_OF_DEFAULTS
from asyncgen.generation.config.parameters import FIELDS
from tests.cases import for_each

DEMO = Path(asyncgen.__file__).with_name("demo")
SINGLE = [each.name for each in FIELDS if each.type in ("int", "float")]


def opened(place: Path, file: str, **defaults: Any) -> None:
    """Open the demo model with other defaults in one of its files."""
    folder = shutil.copytree(DEMO, place / "it", dirs_exist_ok=True)
    if file == "config.json":
        (folder / "generation_config.json").unlink(missing_ok=True)
    said = json.loads((DEMO / file).read_text())
    (folder / file).write_text(json.dumps({**said, **defaults}))
    asyncgen.load_model(folder, device="cpu", progress=False)


@for_each("name", SINGLE)
def test_several_values_or_an_object_in_the_place_of_a_number(name: str, tmp_path: Path) -> None:
    values: tuple[Any, ...] = ([], [1], [[1, 2]], {}, {"a": 1})
    for value in values:
        with pytest.raises(ModelLoadError, match=f"generation_config.json: .*`{name}` is "):
            opened(tmp_path, "generation_config.json", **{name: value})


LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "numbers": ({"suppress_tokens": [7] * 400_000}, f"characters .* at most {MOST_OF_DEFAULTS}"),
    "a text": ({"some_key": "x" * MOST_OF_DEFAULTS}, "`some_key` is .* characters as JSON"),
    "lists": ({"bad_words_ids": [[7]] * MOST_LISTS}, f"lists, all defaults .* {MOST_LISTS}"),
    "objects": ({"some_key": [{}] * MOST_LISTS}, f"lists, all defaults .* {MOST_LISTS}"),
    "beams": ({"num_beams": 4097}, "`num_beams` is 4097: .*at most 4096"),
    "answers": ({"num_return_sequences": 10**30}, "`num_return_sequences` is 1.*at most 4096"),
    "deep lists": ({"some_key": json.loads("[" * 40 + "]" * 40)}, "at most 32 deep"),
    "deep objects": ({"some_key": json.loads('{"a":' * 99 + "1" + "}" * 99)}, "at most 32 deep"),
}


@for_each("kind", LARGE)
def test_defaults_that_each_request_would_take_long_to_copy(kind: str, tmp_path: Path) -> None:
    defaults, said = LARGE[kind]
    with pytest.raises(ModelLoadError, match=f"generation_config.json: .*{said}"):
        opened(tmp_path, "generation_config.json", **defaults)


def test_defaults_of_an_old_config_are_measured_as_well(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match=r"config.json: `bad_words_ids` is .* lists, all defa"):
        opened(tmp_path, "config.json", bad_words_ids=[[7]] * MOST_LISTS)


def test_many_banned_words_are_read(tmp_path: Path) -> None:
    opened(tmp_path, "generation_config.json", bad_words_ids=[[7]] * 30_000)


@for_each("name", ["forced_bos_token_id", "forced_eos_token_id"])
def test_a_forced_token_that_is_none(name: str, tmp_path: Path) -> None:
    values: tuple[Any, ...] = (True, 0.5, {}, [[1]], [True], "a", -1, 2048, [1, 10**9], 10**30)
    for value in values:
        with pytest.raises(ModelLoadError, match=f"generation_config.json: .*`{name}` is "):
            opened(tmp_path, "generation_config.json", **{name: value})
    opened(tmp_path, "generation_config.json", **{name: 2047})


@for_each("name", ["suppress_tokens", "begin_suppress_tokens"])
def test_banned_tokens_that_are_none(name: str, tmp_path: Path) -> None:
    values: tuple[Any, ...] = (True, 0.5, {}, [[1]], [True], "a", 10**30, [10**30])
    for value in values:
        with pytest.raises(ModelLoadError, match=f"generation_config.json: .*`{name}` is "):
            opened(tmp_path, "generation_config.json", **{name: value})
    opened(tmp_path, "generation_config.json", **{name: []})


@for_each("name", ["num_beams", "num_return_sequences", "prefill_chunk_size"])
def test_rows_that_are_no_number(name: str, tmp_path: Path) -> None:
    values: tuple[Any, ...] = (True, 0.5, -1, 2**31, 10**30, "2", [2])
    for value in values:
        with pytest.raises(ModelLoadError, match=f"generation_config.json: .*`{name}` is "):
            opened(tmp_path, "generation_config.json", **{name: value})


def test_a_factor_that_no_float_holds(tmp_path: Path) -> None:
    with pytest.raises(ModelLoadError, match="`guidance_scale` is 1000.*at most 63 bits"):
        opened(tmp_path, "generation_config.json", guidance_scale=10**400)
