"""The types that editors read are those of the table."""

from __future__ import annotations

from asyncgen.engine.requests.stream_params import StreamParams
from asyncgen.generation.config import GenerationConfig
from asyncgen.generation.config.parameters import FIELDS, PARAMETERS


def test_each_parameter_of_a_stream_has_its_type() -> None:
    types = {name: hint.__forward_arg__ for name, hint in StreamParams.__annotations__.items()}
    wanted = {
        each.name: each.type if each.type == "Any" else f"{each.type} | None"
        for each in PARAMETERS
        if not each.elsewhere
    }
    assert types == wanted


def test_each_field_of_a_configuration_has_its_type() -> None:
    types = {
        name: hint
        for name, hint in GenerationConfig.__annotations__.items()
        if name not in ("_from_model_config", "transformers_version")
    }
    assert types == {
        each.name: each.type if each.type == "Any" else f"{each.type} | None" for each in FIELDS
    }
