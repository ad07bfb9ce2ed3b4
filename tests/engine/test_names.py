"""Names and forms that are refused at the call itself."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from asyncgen.engine.names import ARGUMENTS, NOT_HERE, OWN, check_names, check_prompt, is_messages
from asyncgen.engine.stream_params import StreamParams
from asyncgen.errors import InvalidRequestError
from asyncgen.generation.fields import FIELDS

MESSAGE = {"role": "user", "content": "hi"}


def test_known_names_pass() -> None:
    check_names({"temperature": 0.5, "seed": 1, "stop": ["a"], "num_beams": 4, "top_k": None})


@pytest.mark.parametrize(
    ("name", "hint"), [("temprature", "temperature"), ("maxnewtokens", "max_new_tokens")]
)
def test_a_typo_is_an_error_with_the_nearest_name(name: str, hint: str) -> None:
    with pytest.raises(InvalidRequestError, match=hint) as caught:
        check_names({name: 3})
    assert caught.value.parameter == name


@pytest.mark.parametrize("name", sorted(NOT_HERE))
def test_what_makes_no_sense_on_a_stream_says_what_to_do(name: str) -> None:
    with pytest.raises(InvalidRequestError, match="not a parameter of a stream"):
        check_names({name: True})


def test_every_parameter_has_a_type() -> None:
    typed = set(StreamParams.__annotations__)
    fields = {field.name for field in FIELDS} - set(NOT_HERE)
    assert typed >= OWN | ARGUMENTS
    assert typed >= fields, fields - typed


@pytest.mark.parametrize("prompt", ["hi", [1, 2], (3,), [MESSAGE], [MESSAGE, MESSAGE]])
def test_prompts_in_their_three_forms(prompt: Any) -> None:
    check_prompt(prompt)
    assert is_messages(prompt) is isinstance(prompt[0], dict)


@pytest.mark.parametrize("prompt", ["", [], None, 5, b"hi", [1, "a"], [MESSAGE, 3], [True], [1.5]])
def test_anything_else_is_refused(prompt: Any) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        check_prompt(prompt)
    assert caught.value.parameter == "prompt"


def test_importing_it_brings_no_torch() -> None:
    code = "import sys, asyncgen.engine.names; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
