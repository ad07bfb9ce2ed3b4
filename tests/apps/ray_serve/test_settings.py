"""Test the settings of an application over several engines."""

from __future__ import annotations

from typing import Any

import pytest

from asyncgen_apps.ray_serve import RaySettings, read_settings
from asyncgen_apps.ray_serve.settings import with_secret
from tests.cases import for_each


def test_texts_of_a_command_line_are_read() -> None:
    read = read_settings({"model": "7", "replicas": "3", "num_gpus": "0.5", "with_chat": "true"})
    assert read == RaySettings(model="7", replicas=3, num_gpus=0.5, with_chat=True)
    assert read_settings({"max_replicas": "4", "model_names": "a b"}).model_names == ("a", "b")
    assert read_settings({"engine": {"num_threads": 2}}).engine == {"num_threads": 2}


@for_each(
    ("values", "match"),
    [
        ({"replica": 2}, "`replica` is no setting"),
        ({"replicas": 0}, "`replicas` is 0: a number from 1"),
        ({"replicas": "two"}, "`replicas` is 'two': a number"),
        ({"replicas": 3, "max_replicas": 2}, "`max_replicas` is 2: at least `replicas`"),
        ({"target_requests": 0.0}, "`target_requests` is 0.0"),
        ({"drain_seconds": -1}, "`drain_seconds` is -1"),
        ({"target_pages": 1.5}, "`target_pages` is 1.5: above 0, up to 1"),
        ({"downscale_seconds": -1}, "`downscale_seconds` is -1"),
        ({"resume_secret": "short"}, "`resume_secret` is too short: 16"),
        ({"with_chat": "on"}, "`with_chat` is 'on': one of 1, true, yes"),
        ({"engine": "x"}, "write it in a file"),
    ],
)
def test_wrong_settings_are_refused_by_name(values: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        read_settings(values)


def test_a_secret_is_the_settings_own_then_the_variables_then_drawn() -> None:
    own = RaySettings(resume_secret="o" * 16)
    environ = {"ASYNCGEN_RESUME_SECRET": " " + "v" * 16 + "\n"}
    assert with_secret(own, environ) == own
    assert with_secret(RaySettings(), environ).resume_secret == "v" * 16
    drawn = {with_secret(RaySettings(), {}).resume_secret for _ in range(2)}
    assert len(drawn) == 2 and min(map(len, drawn)) >= 16
    with pytest.raises(ValueError, match="ASYNCGEN_RESUME_SECRET is too short: 16"):
        with_secret(RaySettings(), {"ASYNCGEN_RESUME_SECRET": "short"})
