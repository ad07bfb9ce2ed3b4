"""instructor, in its modes of tools and of JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import instructor
import pytest
from openai import OpenAI
from pydantic import BaseModel

from tests.apps.openai_http.clients.talks import talks

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.clients, pytest.mark.filterwarnings("ignore")]
MODES = ["TOOLS", "JSON", "JSON_SCHEMA", "MD_JSON"]


class Person(BaseModel):
    """A person."""

    name: str
    age: int


@pytest.fixture(scope="module")
def client() -> Iterator[OpenAI]:
    with talks() as served, OpenAI(base_url=served.url, api_key="none") as opened:
        yield opened


@pytest.mark.parametrize("mode", MODES)
def test_modes(client: OpenAI, mode: str) -> None:
    asking = instructor.from_openai(client, mode=getattr(instructor.Mode, mode))
    got = asking.chat.completions.create(
        model="demo",
        response_model=Person,
        messages=[{"role": "user", "content": "Which person?"}],
        temperature=0,
        max_retries=0,
    )
    assert got.model_dump() == {"name": "Ada", "age": 36}
