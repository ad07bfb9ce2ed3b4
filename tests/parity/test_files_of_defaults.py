"""A `generation_config.json`: read as transformers 5.23 reads it, or refused by name."""

from __future__ import annotations

import json
import logging
import warnings
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from asyncgen import LLM
from asyncgen.errors import AsyncgenError, InvalidRequestError, ModelLoadError
from asyncgen.generation.config.parameters import DRAFTING, FIELDS
from asyncgen.generation.generate.defaults import resolve_config
from asyncgen.reference.load_model import load_model
from asyncgen.reference.model_loader import read_generation_config
from tests.cases import for_each
from tests.doubles.models import byte_tokenizer
from tests.fixtures import tiny_llama

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

transformers = pytest.importorskip("transformers", "5.23")

PROMPT = [3, 5, 7]
LENGTH = {"max_new_tokens": 4}


class Doors:
    """One tiny model behind every door, whose file of defaults a test writes."""

    def __init__(self, folder: Path) -> None:
        tiny_llama.save(folder, 0)
        self.folder = folder
        self.theirs = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
        self.ours = load_model(folder, progress=False)
        self.llm = LLM(self.ours, tokenizer=byte_tokenizer())

    def write(self, fields: dict[str, Any]) -> None:
        """Write the file."""
        text = json.dumps({"eos_token_id": 2, "pad_token_id": 0, **LENGTH, **fields})
        (self.folder / "generation_config.json").write_text(text, encoding="utf-8")

    def read(self) -> None:
        """Let our model have the defaults of the file."""
        self.ours.generation_config = read_generation_config(self.folder, self.ours.core.config)

    def generated(self, model: Any) -> list[list[int]]:
        """Return what ``model.generate`` writes behind the prompt."""
        torch.manual_seed(0)
        found = model.generate(torch.tensor([PROMPT]))
        rows = found if isinstance(found, torch.Tensor) else found.sequences
        return [row[len(PROMPT) :].tolist() for row in rows]

    def streamed(self) -> list[list[int]]:
        """Return what a request without parameters gives."""
        return [list(each.token_ids) for each in self.llm.generate(PROMPT, seed=1).samples]


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    doors = Doors(tmp_path_factory.mktemp("defaults"))
    logging.disable(logging.WARNING)
    with doors.llm, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield doors
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="module")
def greedy(doors: Doors) -> list[list[int]]:
    doors.write({})
    doors.read()
    return doors.streamed()


@for_each("name", ["do_sample", "use_cache", "renormalize_logits", "return_dict_in_generate"])
@for_each("value", ["true", "false", "yes", 2, [], {}])
def test_switch_that_is_neither_true_nor_false_is_refused_by_name(
    doors: Doors, name: str, value: Any
) -> None:
    doors.write({name: value})
    with pytest.raises(ModelLoadError, match=f"_config.json: `{name}` is .*must be True or False"):
        load_model(doors.folder, progress=False)


@for_each("value", [True, 1, 1.0])
def test_switch_that_is_1_is_on_at_every_door(
    doors: Doors, greedy: list[list[int]], value: Any
) -> None:
    doors.write({"do_sample": value, "temperature": 1.5})
    doors.read()
    doors.theirs.generation_config = transformers.GenerationConfig.from_pretrained(doors.folder)
    assert doors.generated(doors.ours) == doors.generated(doors.theirs) != greedy
    assert doors.streamed() != greedy


@for_each(
    "fields",
    [
        {"temperature": 0.0},
        {"do_sample": False, "temperature": 0.0},
        {"do_sample": None, "temperature": 0, "top_k": None},
        {"do_sample": 0, "temperature": 0.0, "top_p": 0.5, "top_k": -1},
        {"temperature": 0.0, "eos_token_id": -1},
    ],
)
def test_default_temperature_of_0_is_greedy_at_every_door(
    doors: Doors, greedy: list[list[int]], fields: dict[str, Any]
) -> None:
    doors.write(fields)
    doors.read()
    assert doors.generated(doors.ours) == doors.streamed() == greedy
    assert [list(each.token_ids) for each in doors.llm.generate(PROMPT, n=2).samples] == greedy * 2


@for_each("name", ["validate", "to_dict", "update", "extra_output_flags"])
def test_key_with_the_name_of_a_method_is_refused(doors: Doors, name: str) -> None:
    doors.write({name: 1})
    with pytest.raises(ModelLoadError, match=f"`{name}` is 1: a name of `GenerationConfig` itself"):
        doors.read()


@for_each(
    "fields", [{"temperature": "0.7"}, {"top_k": "5"}, {"suppress_tokens": [3, "4"]}, {"min_p": ""}]
)
def test_text_where_a_number_belongs_is_refused_when_the_file_is_read(
    doors: Doors, fields: dict[str, Any]
) -> None:
    doors.write(fields)
    with pytest.raises(ModelLoadError, match=f"generation_config.json: `{next(iter(fields))}` is"):
        doors.read()


def test_fields_in_the_model_configuration_are_held_to_the_same_rules(tmp_path: Path) -> None:
    tiny_llama.save(tmp_path, 0)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**tiny_llama.CONFIG, "do_sample": "true"}), encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"config.json: `do_sample` is 'true'"):
        load_model(tmp_path, progress=False)


@for_each("fields", [{"do_sample": 1}, {"num_beams": 2}, {}])
def test_configuration_of_transformers_is_read_as_theirs(
    doors: Doors, fields: dict[str, Any]
) -> None:
    doors.write({})
    doors.read()
    doors.theirs.generation_config = transformers.GenerationConfig.from_pretrained(doors.folder)
    call = {"generation_config": transformers.GenerationConfig(**LENGTH, **fields)}
    torch.manual_seed(0)
    expected = doors.theirs.generate(torch.tensor([PROMPT]), **call)
    torch.manual_seed(0)
    found: Any = doors.ours.generate(torch.tensor([PROMPT]), **call)
    assert torch.equal(found, expected)


def test_configuration_of_transformers_is_held_to_the_same_rules(doors: Doors) -> None:
    call: dict[str, Any] = {"generation_config": transformers.GenerationConfig(do_sample="true")}
    with pytest.raises(InvalidRequestError, match="`do_sample` is 'true'"):
        doors.ours.generate(torch.tensor([PROMPT]), **call)
    with pytest.raises(InvalidRequestError, match="`do_sample` is 'true'"):
        doors.llm.generate(PROMPT, **call)


switches = st.sampled_from([True, False, None, 1, "true", "no"])
ids = st.sampled_from([None, 2, 28, [2, 42], -1, 2.0, "2", []])
POOLS: dict[str, Any] = {
    "do_sample": st.sampled_from([True, False, None, 0, 1, 1.0, "true", "", []]),
    "use_cache": st.sampled_from([True, False, None, 1, "false"]),
    "temperature": st.sampled_from([0.0, 0, 0.7, 1.0, 2, None, "0.7", True]),
    "top_k": st.sampled_from([0, 1, 5, 50, 50.0, -1, None, "5"]),
    "top_p": st.sampled_from([0.0, 0.5, 1.0, 1.5, None, "0.9"]),
    "min_p": st.sampled_from([0.0, 0.2, None, "0.1"]),
    "typical_p": st.sampled_from([0.5, 1.0, None]),
    "epsilon_cutoff": st.sampled_from([0.0, 0.1, None]),
    "repetition_penalty": st.sampled_from([1.0, 1.3, 2, 0, None, "1.2"]),
    "no_repeat_ngram_size": st.sampled_from([0, 2, 2.0, None, True]),
    "num_beams": st.sampled_from([1, 2, 3, None, 2.0, "2", 0]),
    "early_stopping": st.sampled_from([True, False, None, 1, 0, "never", "true"]),
    "length_penalty": st.sampled_from([1.0, 0.5, -1, None, "1"]),
    "num_return_sequences": st.sampled_from([1, 2, None]),
    "max_new_tokens": st.sampled_from([1, 4, 4.0, "4", 0]),
    "max_length": st.sampled_from([5, 30, None, "30"]),
    "min_length": st.sampled_from([0, 6, None, "3"]),
    "min_new_tokens": st.sampled_from([2, 2.0, None]),
    "eos_token_id": ids,
    "pad_token_id": st.sampled_from([0, None, -1, "0"]),
    "suppress_tokens": st.sampled_from([None, [], [42], "42"]),
    "begin_suppress_tokens": st.sampled_from([None, [42, 0]]),
    "forced_bos_token_id": st.sampled_from([None, 9]),
    "forced_eos_token_id": st.sampled_from([None, 2, [2, 3]]),
    "bad_words_ids": st.sampled_from([None, [[42]], [[42, 0]], [], [42]]),
    "sequence_bias": st.sampled_from([None, [[[42], -9.5]], [[[42], 1]]]),
    "exponential_decay_length_penalty": st.sampled_from([None, [2, 1.5], ["2", 1.5]]),
    "guidance_scale": st.sampled_from([None, 1.0, 1.5]),
    "renormalize_logits": switches,
    "remove_invalid_values": switches,
    "output_scores": switches,
    "return_dict_in_generate": switches,
    "cache_implementation": st.sampled_from([None, "dynamic", "static", "hybrid", "bogus"]),
    "transformers_version": st.sampled_from(["4.40.0", None]),
    "_from_model_config": st.booleans(),
    "custom": st.sampled_from([1, None, {"do_sample": True, "temperature": "x"}]),
}


LEFT_OPEN = ("max_length", "cache_implementation", "pad_token_id", *DRAFTING)
"""Fields that get their value later: of lengths, of padding, and those that drafts have."""


def is_named(error: Exception, fields: dict[str, Any]) -> bool:
    """Tell whether an error is our own and names a field, or what the documents call it."""
    parts = {part for name in fields for part in (name, *name.split("_"))}
    return isinstance(error, AsyncgenError | ValueError) and any(p in str(error) for p in parts)


def compare(doors: Doors, fields: dict[str, Any]) -> None:
    doors.write(fields)
    expected = resolved = None
    try:
        theirs = transformers.GenerationConfig.from_pretrained(doors.folder)
        doors.theirs.generation_config = theirs
        resolved = doors.theirs._prepare_generation_config(None)[0]
        expected = doors.generated(doors.theirs)
    except Exception:  # what they refuse is ours to read or to refuse
        pass
    try:
        doors.read()
        config = resolve_config(doors.ours, None, {})[0]
        found = doors.generated(doors.ours)
    except Exception as error:
        assert is_named(error, fields), error
        return
    if expected is None or resolved is None:
        return
    assert found == expected
    for field in FIELDS:
        ours, other = getattr(config, field.name), getattr(resolved, field.name)
        if field.name not in LEFT_OPEN:
            assert ours == other or field.name == "do_sample" and ours is bool(other), field.name
    try:
        streamed = doors.streamed()
    except InvalidRequestError as error:
        assert is_named(error, fields), error
        return
    assert config.do_sample or streamed == [row[: len(streamed[0])] for row in expected]


random_files = st.fixed_dictionaries({}, optional=POOLS)
few = st.lists(st.sampled_from(sorted(POOLS)), max_size=5, unique=True).flatmap(
    lambda names: st.fixed_dictionaries({name: POOLS[name] for name in names})
)


@given(fields=few)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
def test_random_file_is_read_as_the_reference_reads_it(
    doors: Doors, fields: dict[str, Any]
) -> None:
    compare(doors, fields)


@pytest.mark.gate
@given(fields=random_files | few)
@settings(max_examples=600, deadline=None, suppress_health_check=list(HealthCheck))
def test_many_random_files_are_read_as_the_reference_reads_them(
    doors: Doors, fields: dict[str, Any]
) -> None:
    compare(doors, fields)
