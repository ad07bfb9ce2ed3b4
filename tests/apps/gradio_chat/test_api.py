"""``gradio_client`` against a served chat: exact text, cancel, errors in words."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest
from gradio_client import Client
from gradio_client.exceptions import AppError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.apps.gradio_chat.serving import Served

pytestmark = pytest.mark.timeout(300)  # the first one starts the server

GREEDY = {"strategy": "greedy", "max_new_tokens": 40}


@pytest.fixture(scope="module")
def _client(_chat: Served) -> Iterator[Client]:
    client = Client(_chat.url, verbose=False)
    yield client
    client.close()


@pytest.fixture
def client(chat: Served, _client: Client) -> Client:
    """A client of an idle server."""
    return _client


def _ask(client: Client, message: str, **arguments: Any) -> Any:
    return client.submit(message, **{"history": [], "settings": {}, **arguments}, api_name="/chat")


def test_the_text_grows_to_the_models_answer(chat: Served, client: Client) -> None:
    chat.set(delay=0.05, max_new_tokens=40, min_new_tokens=1)
    job = _ask(client, "Who are you?", settings={"strategy": "greedy"})
    texts = list(job)
    assert len(texts) > 2
    assert all(later.startswith(first) for first, later in zip(texts, texts[1:], strict=False))
    chat.set()
    assert texts[-1] == _ask(client, "Who are you?", settings=GREEDY).result()


def test_history_and_settings_reach_the_model(chat: Served, client: Client) -> None:
    history = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    history[1]["reasoning"] = "A greeting."
    settings = {"system": "Be kind.", "seed": 7, "temperature": 0.5, "max_new_tokens": 5}
    _ask(client, "Who?", history=history, settings=settings).result()
    prompt, params = chat.asked[-1]
    assert [m["content"] for m in prompt] == ["Be kind.", "Hi.", "Hello.", "Who?"]
    assert prompt[2]["reasoning"] == "A greeting."
    assert params == {"seed": 7, "temperature": 0.5, "max_new_tokens": 5, "client": "127.0.0.1"}


def test_cancel_stops_the_model(chat: Served, client: Client) -> None:
    chat.set(delay=0.2)  # by itself it would end after more than a minute
    job = _ask(client, "Tell me a story about a fox.")
    while not job.outputs():
        time.sleep(0.01)
    assert chat.busy
    job.cancel()
    chat.wait_idle(40)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"settings": {"temperature": 99}}, "'temperature' as 99"),
        ({"settings": {"assistant_model": "/etc"}}, "'assistant_model'"),
        ({"settings": {"strategy": "assistant"}}, "no draft model"),
        ({"history": [{"role": "king", "content": "x"}]}, "king"),
        ({"settings": {"max_new_tokens": 100_000}}, "max_new_tokens"),
    ],
)
def test_unsupported_arguments_raise_app_error(client: Client, arguments: Any, words: str) -> None:
    with pytest.raises(AppError, match=words):
        _ask(client, "Who?", **arguments).result()


def test_api_has_only_the_chat_endpoint(client: Client) -> None:
    api: Any = client.view_api(return_format="dict", print_info=False)
    assert set(api["named_endpoints"]) == {"/chat"}
    assert not api["unnamed_endpoints"]
