"""LangChain's ``ChatOpenAI`` and ``OpenAIEmbeddings`` run unmodified."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio
import pytest
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

from tests.apps.openai_http.running import reference

if TYPE_CHECKING:
    from tests.apps.openai_http.running import Running

pytestmark = pytest.mark.clients
STORY = "Tell me a story."
HELLO = [{"role": "user", "content": STORY}]


def test_langchain(demo: Running) -> None:
    chat = ChatOpenAI(
        base_url=demo.url, api_key="none", model="demo", temperature=0, max_tokens=30, seed=1
    )
    whole = chat.invoke(STORY)
    pieces = list(chat.stream(STORY))
    assert "".join(piece.text for piece in pieces) == whole.text
    assert whole.text == reference(demo, HELLO, do_sample=False, max_new_tokens=30).text
    assert whole.usage_metadata["output_tokens"] > 0
    logged = chat.bind(logprobs=True).invoke(STORY)
    assert logged.response_metadata["logprobs"]["content"]


def test_langchain_embeddings(demo: Running) -> None:
    embeddings = OpenAIEmbeddings(
        base_url=demo.url, api_key="none", model="demo", check_embedding_ctx_length=False
    )
    texts = ["Once upon a time", "A fox"]
    wanted = [one.vector.tolist() for one in anyio.run(lambda: demo.llm.embed(texts))]
    assert embeddings.embed_documents(texts) == wanted
    assert embeddings.embed_query(texts[1]) == wanted[1]
