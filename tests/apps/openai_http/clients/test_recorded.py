"""Replay the requests of clients: the server answers as the tests of the clients expect.

Each test bears the name of the client's own.
"""

from __future__ import annotations

from array import array
from base64 import b64decode
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from http.client import HTTPConnection, HTTPResponse
from typing import TYPE_CHECKING, Any

import pytest

from asyncgen import AsyncLLM
from tests.apps.openai_http.clients import PACKAGES
from tests.apps.openai_http.clients.recorded import Request, read
from tests.apps.openai_http.clients.test_recorded_tools import CLIENTS
from tests.apps.openai_http.running import PATIENCE, Reply, reference, running, wait_for
from tests.apps.openai_http.test_answer import scripted
from tests.cases import for_each

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.openai_http.running import Running

HELLO = [{"role": "user", "content": "Tell me a story."}]


@cache
def recorded(client: str) -> dict[str, list[Request]]:
    return read(client)


def names(client: str, test: str) -> list[str]:
    """Names of the parametrised runs of a client's test."""
    return [name for name in recorded(client) if name.startswith(f"{test}[")]


def send(served: Running, sent: Request) -> Reply:
    return served.request(sent.method, sent.path, sent.body or None, sent.headers)


def replies(served: Running, client: str, test: str) -> list[Reply]:
    """Replies to what a test sent, all of which are good."""
    found = [send(served, sent) for sent in recorded(client)[test]]
    assert [reply.status for reply in found] == [200] * len(found)
    return found


@contextmanager
def opened(served: Running, sent: Request) -> Iterator[HTTPResponse]:
    """Send a request; leave the reply on the wire, and the wire behind."""
    connection = HTTPConnection("127.0.0.1", served.port, timeout=PATIENCE)
    try:
        connection.request(sent.method, sent.path, sent.body, sent.headers)
        with connection.getresponse() as reply:
            yield reply
    finally:
        connection.close()


def chunks(reply: Reply) -> list[Any]:
    """The events of a stream, which has ended well; a reply in one piece counts as one."""
    if not reply.headers["content-type"].startswith("text/event-stream"):
        return [reply.json()]
    *events, last = reply.events()
    assert last == "[DONE]"
    return events


def texts(reply: Reply) -> list[str]:
    """The text of each choice."""
    joined: defaultdict[int, str] = defaultdict(str)
    for event in chunks(reply):
        for choice in event["choices"]:
            said = choice.get("message") or choice.get("delta") or choice
            joined[choice["index"]] += said.get("content") or said.get("text") or ""
    assert sorted(joined) == list(range(len(joined)))
    return [joined[index] for index in sorted(joined)]


def library(served: Running, sent: Request) -> Any:
    """Return the library's answer to the parameters of a chat."""
    body = sent.json()
    assert body.pop("messages") == HELLO
    params = {name: body[name] for name in body.keys() - {"model", "stream", "max_tokens"}}
    params["max_new_tokens"] = params.pop("max_completion_tokens", body.get("max_tokens"))
    if params.get("temperature") == 0:
        del params["temperature"]
        params["do_sample"] = False
        params.pop("seed", None)  # nothing is drawn
    return reference(served, HELLO, **params)


def test_nothing_recorded_is_left_out() -> None:
    tests = {name.partition("[")[0] for client in PACKAGES for name in recorded(client)}
    left = tests - globals().keys()
    others = (*CLIENTS, "lm_eval")
    elsewhere = {name.partition("[")[0] for client in others for name in recorded(client)}
    assert left <= elsewhere, "these are sent by `test_recorded_tools` and `test_recorded_lm_eval`"


def test_models(either: Running) -> None:
    listed, one = replies(either, "openai", "test_models")
    assert [model["id"] for model in listed.json()["data"]] == ["demo"]
    assert one.json()["owned_by"] == "asyncgen"


def test_chat_is_what_the_library_says(either: Running) -> None:
    name = "test_chat_is_what_the_library_says"
    (got,) = replies(either, "openai", name)
    (sent,) = recorded("openai")[name]
    wanted = library(either, sent)
    assert texts(got) == [wanted.text]
    assert got.json()["choices"][0]["finish_reason"] == wanted.finish_reason
    assert got.json()["usage"]["completion_tokens"] == wanted.usage.completion_tokens
    assert got.json()["usage"]["prompt_tokens"] == wanted.usage.prompt_tokens


def test_a_stream_joins_to_the_whole(either: Running) -> None:
    whole, stream = replies(either, "openai", "test_a_stream_joins_to_the_whole")
    assert texts(stream) == texts(whole)
    events = chunks(stream)
    assert events[0]["choices"][0]["delta"]["role"] == "assistant"
    reason = whole.json()["choices"][0]["finish_reason"]
    assert events[-2]["choices"][0]["finish_reason"] == reason
    assert events[-1]["choices"] == []
    assert events[-1]["usage"] == whole.json()["usage"]
    assert len({event["id"] for event in events}) == 1


def test_seeds_repeat_and_differ(either: Running) -> None:
    first, again, other = map(texts, replies(either, "openai", "test_seeds_repeat_and_differ"))
    assert first == again != other


@pytest.mark.parametrize("name", names("openai", "test_several_choices"))
def test_several_choices(either: Running, name: str) -> None:
    three, one, stream = replies(either, "openai", name)
    temperature = recorded("openai")[name][0].json()["temperature"]
    assert len(texts(three)) == 3
    assert len(set(texts(three))) == (1 if temperature == 0 else 3)
    assert three.json()["usage"]["prompt_tokens"] == one.json()["usage"]["prompt_tokens"]
    assert texts(stream) == texts(three)


def test_stop_ends_before_itself(either: Running) -> None:
    whole, cut = replies(either, "openai", "test_stop_ends_before_itself")
    (stop,) = recorded("openai")["test_stop_ends_before_itself"][1].json()["stop"]
    (text,) = texts(whole)
    assert texts(cut) == [text[: text.index(stop)]]
    assert cut.json()["choices"][0]["finish_reason"] == "stop"


def test_logprobs_of_a_chat(either: Running) -> None:
    got, stream = replies(either, "openai", "test_logprobs_of_a_chat")
    wanted = library(either, recorded("openai")["test_logprobs_of_a_chat"][0]).logprobs
    found = got.json()["choices"][0]["logprobs"]["content"]
    assert [one["token"] for one in found] == [one.token for one in wanted]
    assert [one["logprob"] for one in found] == pytest.approx(
        [one.logprob for one in wanted], abs=1e-4
    )
    for mine, theirs in zip(found, wanted, strict=True):
        assert [one["token"] for one in mine["top_logprobs"]] == [one.token for one in theirs.top]
        assert bytes(mine["bytes"]).decode() == mine["token"]
    entries = [event["choices"][0].get("logprobs") for event in chunks(stream)]
    streamed = [one["token"] for entry in entries if entry for one in entry["content"]]
    assert streamed == [one["token"] for one in found]


def test_text_completions(either: Running) -> None:
    got, stream = replies(either, "openai", "test_text_completions")
    assert len(texts(got)) == 4
    assert texts(got)[0] == texts(got)[1] != texts(got)[2]
    assert got.json()["usage"]["completion_tokens"] == 4 * 16, "the API's length"
    logprobs = got.json()["choices"][0]["logprobs"]
    assert "".join(logprobs["tokens"]) == texts(got)[0]
    assert logprobs["text_offset"][1] == len(logprobs["tokens"][0])
    assert texts(stream) == texts(got)[:1]


def test_token_ids_as_a_prompt(either: Running) -> None:
    text, ids = replies(either, "openai", "test_token_ids_as_a_prompt")
    assert texts(text) == texts(ids)


def test_a_bias_forces_and_bans(either: Running) -> None:
    (got,) = replies(either, "openai", "test_a_bias_forces_and_bans")
    (sent,) = recorded("openai")["test_a_bias_forces_and_bans"]
    (token,) = map(int, sent.json()["logit_bias"])
    assert texts(got) == [either.llm.tokenizer.decode([token] * 3)]


def test_own_parameters_as_extras(either: Running) -> None:
    got, longer = replies(either, "openai", "test_own_parameters_as_extras")
    wanted = library(either, recorded("openai")["test_own_parameters_as_extras"][0])
    assert texts(got) == [wanted.text]
    assert longer.json()["usage"]["completion_tokens"] == 200


@for_each("name", names("openai", "test_strategies_as_extras"))
def test_strategies_as_extras(either: Running, name: str) -> None:
    (got,) = replies(either, "openai", name)
    (sent,) = recorded("openai")[name]
    assert texts(got) == [library(either, sent).text]


def test_refusals_name_the_field(either: Running) -> None:
    tools, model = recorded("openai")["test_refusals_name_the_field"]
    refused, missing = send(either, tools), send(either, model)
    assert (refused.status, missing.status) == (400, 404)
    assert refused.error["param"] == "tools"
    assert missing.error["code"] == "model_not_found"


def test_a_wrong_key() -> None:
    with running(lambda: AsyncLLM("demo", num_threads=1), api_keys=("right", "other")) as served:
        found = [send(served, sent) for sent in recorded("openai")["test_a_wrong_key"]]
    assert [reply.status for reply in found] == [401, 200, 200]
    assert found[1].json()["data"]


def test_a_client_that_breaks_off_cancels() -> None:
    (sent,) = recorded("openai")["test_a_client_that_breaks_off_cancels"]
    with running(scripted(context_length=1_000_000)) as served:
        with opened(served, sent) as reply:
            got = b""
            while got.count(b"data: ") < 5:
                got += reply.read1()
        served.wait_idle()
        wait_for(lambda: served.figures().finished.get("cancelled", 0) == 1)


def test_async_client(either: Running) -> None:
    *streams, long = recorded("openai")["test_async_client"]
    with ThreadPoolExecutor(len(streams)) as pool:
        found = [texts(reply) for reply in pool.map(lambda sent: send(either, sent), streams)]
    told = sorted(zip([sent.json()["seed"] for sent in streams], found, strict=True))
    assert [seed for seed, _ in told] == [1, 1, 2]
    first, again, other = [text for _, text in told]
    assert first == again != other
    connection = HTTPConnection("127.0.0.1", either.port, timeout=PATIENCE)
    connection.request(long.method, long.path, long.body, long.headers)
    wait_for(lambda: either.unfinished() == 1)
    connection.close()
    either.wait_idle()


def test_an_error_after_the_beginning() -> None:
    (sent,) = recorded("openai")["test_an_error_after_the_beginning"]
    with running(scripted(context_length=1_000_000), drain_seconds=0.1) as served:
        with opened(served, sent) as reply:
            got = reply.read1()
            served.call(served.server.leave)
            got += reply.read()
    *_, told = Reply(200, {}, got).events()
    assert told["error"]["code"] == "shutting_down"


def vectors(got: Reply) -> list[list[float]]:
    """The vectors of a reply, however they are spelled."""
    given = [one["embedding"] for one in got.json()["data"]]
    return [one if isinstance(one, list) else array("f", b64decode(one)).tolist() for one in given]


def test_embeddings(either: Running) -> None:
    *good, refused = [send(either, sent) for sent in recorded("openai")["test_embeddings"]]
    plain, packed = map(vectors, good)
    assert plain == packed and len(plain) == 2
    assert refused.status == 400 and refused.error["param"] == "dimensions"


def test_langchain_embeddings(either: Running) -> None:
    both, one = map(vectors, replies(either, "langchain", "test_langchain_embeddings"))
    assert both[1:] == one


def test_langchain(either: Running) -> None:
    whole, stream, logged = replies(either, "langchain", "test_langchain")
    sent = recorded("langchain")["test_langchain"][0]
    assert texts(stream) == texts(whole) == [library(either, sent).text]
    assert whole.json()["usage"]["completion_tokens"] > 0
    assert logged.json()["choices"][0]["logprobs"]["content"]


def test_load_chat(either: Running) -> None:
    (got,) = replies(either, "load_chat", "test_load_chat")
    assert len(chunks(got)) > 2, "it grows"
    assert texts(got)[0]


@for_each("name", names("guidellm", "test_guidellm"))
def test_guidellm(either: Running, name: str) -> None:
    requests = recorded("guidellm")[name]
    with ThreadPoolExecutor(len(requests)) as pool:
        found = list(pool.map(lambda sent: send(either, sent), requests))
    assert {reply.status for reply in found} == {200}
    asked = [sent for sent in requests if sent.method == "POST"]
    streams = [reply for reply in found if "event-stream" in reply.headers["content-type"]]
    assert len(streams) == len(asked) > 3
    for reply in streams:
        assert chunks(reply)[-1]["usage"]["completion_tokens"] == 32
    either.wait_idle()


@pytest.mark.parametrize("name", names("schemathesis", "test_the_document_holds"))
def test_the_document_holds(either: Running, name: str) -> None:
    statuses: defaultdict[str, set[int]] = defaultdict(set)
    for sent in recorded("schemathesis")[name]:
        got = send(either, sent)
        assert got.status < 500, got.body
        statuses[f"{sent.method} {sent.path}"].add(got.status)
    assert {200, 400} <= statuses["POST /v1/chat/completions"]
    assert {200, 400} <= statuses["POST /v1/completions"]
    assert either.llm.is_healthy
    either.wait_idle()
