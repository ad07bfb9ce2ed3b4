"""The client of OpenAI runs unmodified."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from openai import (
    APIError,
    AsyncOpenAI,
    AuthenticationError,
    BadRequestError,
    NotFoundError,
    OpenAI,
)

from asyncgen import AsyncLLM
from tests.apps.openai_http.running import reference, running, wait_for
from tests.apps.openai_http.test_answer import scripted

if TYPE_CHECKING:
    from collections.abc import Iterator

    from openai.types.chat import ChatCompletionMessageParam

    from tests.apps.openai_http.running import Running

pytestmark = pytest.mark.clients
HELLO: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def client(demo: Running) -> Iterator[OpenAI]:
    with OpenAI(base_url=demo.url, api_key="none", max_retries=0) as opened:
        yield opened


def test_models(client: OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").owned_by == "asyncgen"


def test_chat_is_what_the_library_says(client: OpenAI, demo: Running) -> None:
    got = client.chat.completions.create(
        model="demo", messages=HELLO, temperature=0, max_completion_tokens=40
    )
    wanted = reference(demo, HELLO, do_sample=False, max_new_tokens=40)
    assert got.choices[0].message.content == wanted.text
    assert got.choices[0].finish_reason == wanted.finish_reason
    assert got.usage is not None
    assert got.usage.completion_tokens == wanted.usage.completion_tokens
    assert got.usage.prompt_tokens == wanted.usage.prompt_tokens


def test_a_stream_joins_to_the_whole(client: OpenAI) -> None:
    asked: Any = {"model": "demo", "messages": HELLO, "seed": 5, "temperature": 0.8}
    whole = client.chat.completions.create(**asked, max_tokens=50)
    chunks = list(
        client.chat.completions.create(
            **asked, max_tokens=50, stream=True, stream_options={"include_usage": True}
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text == whole.choices[0].message.content
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert len({chunk.id for chunk in chunks}) == 1


def test_seeds_repeat_and_differ(client: OpenAI) -> None:
    def ask(seed: int) -> str | None:
        got = client.chat.completions.create(
            model="demo", messages=HELLO, seed=seed, temperature=1.5, max_tokens=40
        )
        return got.choices[0].message.content

    assert ask(1) == ask(1) != ask(2)


@pytest.mark.parametrize("temperature", [0, 1.2])
def test_several_choices(client: OpenAI, temperature: float) -> None:
    got = client.chat.completions.create(
        model="demo", messages=HELLO, n=3, temperature=temperature, max_tokens=12, seed=3
    )
    texts = [choice.message.content for choice in got.choices]
    assert [choice.index for choice in got.choices] == [0, 1, 2]
    assert len(set(texts)) == (1 if temperature == 0 else 3)
    one = client.chat.completions.create(model="demo", messages=HELLO, temperature=0, max_tokens=12)
    assert got.usage is not None
    assert one.usage is not None
    assert got.usage.prompt_tokens == one.usage.prompt_tokens
    chunks = client.chat.completions.create(
        model="demo",
        messages=HELLO,
        n=3,
        temperature=temperature,
        max_tokens=12,
        seed=3,
        stream=True,
    )
    joined = ["", "", ""]
    for chunk in chunks:
        joined[chunk.choices[0].index] += chunk.choices[0].delta.content or ""
    assert joined == texts


def test_stop_ends_before_itself(client: OpenAI) -> None:
    whole = client.chat.completions.create(model="demo", messages=HELLO, temperature=0)
    text = whole.choices[0].message.content or ""
    stop = text[20:24]
    cut = client.chat.completions.create(model="demo", messages=HELLO, temperature=0, stop=[stop])
    assert cut.choices[0].message.content == text[: text.index(stop)]
    assert cut.choices[0].finish_reason == "stop"


def test_logprobs_of_a_chat(client: OpenAI, demo: Running) -> None:
    asked: Any = {"model": "demo", "messages": HELLO, "temperature": 0, "max_tokens": 8}
    got = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    wanted = reference(
        demo, HELLO, do_sample=False, max_new_tokens=8, logprobs=True, top_logprobs=3
    )
    found = got.choices[0].logprobs
    assert found is not None
    assert found.content is not None
    assert [one.token for one in found.content] == [one.token for one in wanted.logprobs]
    assert [one.logprob for one in found.content] == pytest.approx(
        [one.logprob for one in wanted.logprobs], abs=1e-4
    )
    for mine, theirs in zip(found.content, wanted.logprobs, strict=True):
        assert [one.token for one in mine.top_logprobs] == [one.token for one in theirs.top]
        assert bytes(mine.bytes or []).decode() == mine.token
    chunks = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3, stream=True)
    tokens = []
    for chunk in chunks:
        entry = chunk.choices[0].logprobs
        tokens += [one.token for one in (entry.content or [])] if entry else []
    assert tokens == [one.token for one in found.content]


def test_text_completions(client: OpenAI) -> None:
    got = client.completions.create(
        model="demo", prompt=["Once upon a time", "The cat"], temperature=0, n=2, logprobs=2
    )
    assert [choice.index for choice in got.choices] == [0, 1, 2, 3]
    assert got.choices[0].text == got.choices[1].text != got.choices[2].text
    assert got.usage is not None
    assert got.usage.completion_tokens == 4 * 16, "the API's length where none is asked for"
    logprobs = got.choices[0].logprobs
    assert logprobs is not None
    assert "".join(logprobs.tokens or []) == got.choices[0].text
    assert (logprobs.text_offset or [])[1] == len((logprobs.tokens or [])[0])
    chunks = client.completions.create(
        model="demo", prompt="Once upon a time", temperature=0, stream=True
    )
    assert "".join(chunk.choices[0].text for chunk in chunks) == got.choices[0].text


def test_token_ids_as_a_prompt(client: OpenAI, demo: Running) -> None:
    ids = demo.llm.tokenizer.encode("Once upon a time")
    text = client.completions.create(model="demo", prompt="Once upon a time", temperature=0)
    assert client.completions.create(model="demo", prompt=ids, temperature=0).choices[0].text == (
        text.choices[0].text
    )


def test_a_bias_forces_and_bans(client: OpenAI, demo: Running) -> None:
    token = demo.llm.tokenizer.encode("cat")[-1]
    got = client.completions.create(
        model="demo", prompt="The", temperature=0, max_tokens=3, logit_bias={str(token): 100}
    )
    assert got.choices[0].text == demo.llm.tokenizer.decode([token] * 3)


def test_own_parameters_as_extras(client: OpenAI, demo: Running) -> None:
    got = client.chat.completions.create(
        model="demo",
        messages=HELLO,
        max_tokens=20,
        extra_body={"repetition_penalty": 1.4, "do_sample": False},
    )
    wanted = reference(demo, HELLO, repetition_penalty=1.4, do_sample=False, max_new_tokens=20)
    assert got.choices[0].message.content == wanted.text
    longer = client.chat.completions.create(
        model="demo", messages=HELLO, max_tokens=200, temperature=0, extra_body={"ignore_eos": True}
    )
    assert longer.usage is not None
    assert longer.usage.completion_tokens == 200


@pytest.mark.parametrize(
    "extras",
    [
        {"num_beams": 4, "num_beam_groups": 2, "diversity_penalty": 0.5, "do_sample": False},
        {"num_beams": 3, "force_words_ids": [[300]], "do_sample": False},
        {"num_beams": 3, "force_words_ids": [[[300], [301]]], "do_sample": False},
        {"assistant_early_exit": 1, "num_assistant_tokens": 3, "do_sample": False},
        {"watermarking_config": {"bias": 8.0, "context_width": 1}, "seed": 1},
        {"guidance_scale": 1.5, "negative_prompt_ids": [5, 6], "seed": 1},
        {"use_cache": False, "do_sample": False},
    ],
)
def test_strategies_as_extras(client: OpenAI, demo: Running, extras: dict[str, Any]) -> None:
    got = client.chat.completions.create(
        model="demo", messages=HELLO, max_tokens=12, extra_body=extras
    )
    wanted = reference(demo, HELLO, max_new_tokens=12, **extras)
    assert got.choices[0].message.content == wanted.text


def test_refusals_name_the_field(client: OpenAI) -> None:
    with pytest.raises(BadRequestError) as refused:
        client.chat.completions.create(
            model="demo", messages=HELLO, tools=[{"type": "function", "function": {"name": "f"}}]
        )
    assert refused.value.param == "tools"
    with pytest.raises(NotFoundError) as missing:
        client.chat.completions.create(model="gpt", messages=HELLO)
    assert missing.value.code == "model_not_found"


def test_a_wrong_key() -> None:
    with running(lambda: AsyncLLM("demo", num_threads=1), api_keys=("right", "other")) as served:
        for key, is_good in (("wrong", False), ("right", True), ("other", True)):
            with OpenAI(base_url=served.url, api_key=key, max_retries=0) as client:
                if is_good:
                    assert client.models.list().data
                    continue
                with pytest.raises(AuthenticationError):
                    client.models.list()


def test_a_client_that_breaks_off_cancels() -> None:
    with running(scripted(context_length=1_000_000)) as served:
        with OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="demo",
                messages=HELLO,
                stream=True,
                max_tokens=900_000,  # however late it is left
                extra_body={"ignore_eos": True},
            )
            with stream:
                for _, _ in zip(range(5), stream, strict=False):
                    pass
        served.wait_idle()
        wait_for(lambda: served.figures().finished.get("cancelled", 0) == 1)


def test_async_client(demo: Running) -> None:
    async def ask(client: AsyncOpenAI, seed: int) -> str:
        stream = await client.chat.completions.create(
            model="demo", messages=HELLO, stream=True, seed=seed, max_tokens=30
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def main() -> None:
        import asyncio

        async with AsyncOpenAI(base_url=demo.url, api_key="none", max_retries=0) as client:
            texts = await asyncio.gather(*(ask(client, seed) for seed in (1, 2, 1)))
            assert texts[0] == texts[2] != texts[1]
            with anyio.move_on_after(0.3):
                await client.chat.completions.create(
                    model="demo", messages=HELLO, max_tokens=1000, extra_body={"ignore_eos": True}
                )

    anyio.run(main)
    demo.wait_idle()


def test_an_error_after_the_beginning() -> None:
    """The client raises when the server leaves in the middle of a stream."""
    with running(scripted(context_length=1_000_000), drain_seconds=0.1) as served:
        with OpenAI(base_url=served.url, api_key="none", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="demo",
                messages=HELLO,
                stream=True,
                max_tokens=900_000,  # however late it is told to leave
                extra_body={"ignore_eos": True},
            )
            assert next(stream)
            served.call(served.server.leave)
            with pytest.raises(APIError) as told:
                for _ in stream:
                    pass
    assert told.value.code == "shutting_down"
    assert json.dumps(told.value.body)


def test_embeddings(client: OpenAI, demo: Running) -> None:
    texts = ["Once upon a time", "A fox"]
    plain = client.embeddings.create(model="demo", input=texts, encoding_format="float")
    packed = client.embeddings.create(model="demo", input=texts)  # by itself it asks for base64
    assert [one.embedding for one in packed.data] == [one.embedding for one in plain.data]
    (wanted,) = anyio.run(lambda: demo.llm.embed(texts[:1]))
    assert plain.data[0].embedding == wanted.vector.tolist()
    assert plain.usage.total_tokens == plain.usage.prompt_tokens > 0
    with pytest.raises(BadRequestError) as refused:
        client.embeddings.create(model="demo", input="a", dimensions=8)
    assert refused.value.param == "dimensions"
