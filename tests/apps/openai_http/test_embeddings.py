"""``POST /v1/embeddings``: what the library gives, as the API lays it out."""

from __future__ import annotations

import struct
from base64 import b64decode
from typing import TYPE_CHECKING, Any

import anyio

from asyncgen import AsyncLLM
from tests.apps.openai_http.running import running, wait_for
from tests.apps.openai_http.test_answer import scripted
from tests.cases import for_each
from tests.doubles.models import Gate

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

TEXTS = ["Once upon a time", "A fox", "One day"]


def embedded(served: Running, texts: Any, **params: Any) -> list[Any]:
    """Return the library's answer, on a loop of its own."""

    async def ask() -> Any:
        return await served.llm.embed(texts, **params)

    found: list[Any] = anyio.run(ask)
    return found


def ask(served: Running, **body: Any) -> Any:
    got = served.post("/embeddings", {"model": "demo", **body})
    assert got.status == 200, got.body
    return got.json()


def test_the_vectors_of_the_library(either: Running) -> None:
    wanted = embedded(either, TEXTS)
    got = ask(either, input=TEXTS, user="somebody")
    assert set(got) == {"object", "data", "model", "usage"} and got["object"] == "list"
    for number, (one, vector) in enumerate(zip(got["data"], wanted, strict=True)):
        assert one == {
            "object": "embedding",
            "index": number,
            "embedding": vector.vector.tolist(),
        }
    tokens = sum(one.usage.prompt_tokens for one in wanted)
    assert got["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    spelled = ask(either, input=TEXTS, encoding_format="base64")
    for one, vector in zip(spelled["data"], wanted, strict=True):
        raw = b64decode(one["embedding"])
        assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == vector.vector.tolist()
    params: Any = {"pooling": "mean", "normalize": False}
    (other,) = ask(either, input=TEXTS[0], **params)["data"]
    assert other["embedding"] == embedded(either, TEXTS[:1], **params)[0].vector.tolist()
    either.wait_idle()


def test_all_forms_of_input(demo: Running) -> None:
    ids = [demo.llm.tokenizer.encode_ids(text) for text in TEXTS]
    wanted = [one["embedding"] for one in ask(demo, input=TEXTS)["data"]]
    assert [one["embedding"] for one in ask(demo, input=ids)["data"]] == wanted
    assert [one["embedding"] for one in ask(demo, input=ids[1])["data"]] == wanted[1:2]
    assert [one["embedding"] for one in ask(demo, input=TEXTS[2])["data"]] == wanted[2:]


@for_each(
    ("body", "param", "says"),
    [
        ({"input": ""}, "input", "empty"),
        ({"input": ["a", ""]}, "input[1]", "empty"),
        ({"input": []}, "input", "at least 1 item"),
        ({"input": [1, "a"]}, "input", "valid integer"),
        ({"input": ["a"] * 2049}, "input", "2048"),
        ({"input": [10**6]}, "input", "token ids"),
        ({"input": [1] * 5000}, "input", "context"),
        ({"input": ["a", "a fox " * 2000]}, "input", "prompt 1 of the list"),
        ({"input": "a", "dimensions": 8}, "dimensions", "not trained"),
        ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format", "base64"),
        ({"input": "a", "pooling": "cls"}, "pooling", "last"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name", "one of"),
        ({"input": "a", "priority": 1}, "priority", ""),
        ({"input": "a", "temperature": 1}, "temperature", "not supported"),
        ({}, "input", ""),
    ],
)
def test_refusals_name_the_field(demo: Running, body: Any, param: str, says: str) -> None:
    got = demo.post("/embeddings", {"model": "demo", **body})
    assert got.status == 400
    assert got.error["param"] == param and says in got.error["message"], got.error
    demo.wait_idle()


def test_access_with_keys() -> None:
    key = {"authorization": "Bearer right"}
    with running(lambda: AsyncLLM("demo", num_threads=1), api_keys=("right",)) as served:
        body = {"model": "demo", "input": "a"}
        assert served.post("/embeddings", body).status == 401
        assert served.post("/embeddings", body, key).status == 200
        assert served.post("/embeddings", {**body, "model": "x"}, key).status == 404
        large = {**body, "input": "a" * (9 << 20)}
        assert served.post("/embeddings", large, key).status == 413
        described = served.request("GET", "/openapi.json", headers=key).json()
        assert "/v1/embeddings" in described["paths"]
        assert (
            'finished_reason="stop"' in served.request("GET", "/metrics", headers=key).body.decode()
        )


def test_a_client_that_leaves_cancels_and_one_too_many_waits() -> None:
    gate = Gate()
    with running(scripted(gate), max_requests=1) as served:
        try:
            body = {"model": "demo", "input": [[7] * 4000, [8] * 4000]}
            wire = served.begin("/embeddings", body)

            def has_both() -> bool:
                gate.allow()  # the engine looks for the second text between two chunks of the first
                return served.unfinished() == 2

            wait_for(has_both)
            got = served.post("/embeddings", {"model": "demo", "input": "a"})
            assert got.status == 429 and "retry-after" in got.headers
            wire.close()
            wait_for(lambda: served.gate.count == 0)
            arrived = gate.arrived
        finally:
            gate.open()
        served.wait_idle()
        assert gate.arrived <= arrived + 1 and served.figures().finished == {"cancelled": 2}
