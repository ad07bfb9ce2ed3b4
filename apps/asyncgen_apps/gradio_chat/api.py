"""The chat as a function that programs call: ``/chat`` of ``gradio_client``.

One question in, the text so far out, each time further on. Settings are those of the panel and no
others: what ``AsyncLLM.stream`` takes beyond them can name files and code.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from typing import Any

import gradio as gr

from asyncgen_apps.gradio_chat.fields import FIELDS, Values
from asyncgen_apps.gradio_chat.model import ChatModel, encoder
from asyncgen_apps.gradio_chat.sessions import client_id
from asyncgen_apps.gradio_chat.settings import checked, stream_params
from asyncgen_apps.gradio_chat.statistics import describe
from asyncgen_apps.gradio_chat.streaming import read_throttled
from asyncgen_apps.serving.clients import Proxies

ROLES = ("system", "user", "assistant")
_TOLD = ("role", "content", "reasoning_content", "reasoning", "thinking")
"""Fields of a message of the history that reach the chat template."""


def chat_function(
    llm: ChatModel, shown: Values, assistant_model: object | None, proxies: Proxies
) -> Callable[..., AsyncGenerator[str, None]]:
    """Make the function.

    Args:
        llm: Model that answers.
        shown: The model's defaults.
        assistant_model: The draft model that users may choose to use, if there is one.
        proxies: Whose word about the address of a user is taken.

    Returns:
        An async generator function for ``gr.api``.
    """

    encode = encoder(llm)

    async def chat(
        request: gr.Request,
        message: str,
        history: list | None = None,
        settings: dict | None = None,
    ) -> AsyncGenerator[str, None]:
        """Answer a message.

        Args:
            request: Filled in by Gradio.
            message: The question.
            history: Earlier messages, each with `role` and `content`.
            settings: Values by name, as in the settings panel, such as `max_new_tokens`.

        Yields:
            The text so far.
        """
        prompt = [*_messages(history or []), {"role": "user", "content": message}]
        values = {**shown, "top_logprobs": 0, **_settings(settings or {})}
        if values["strategy"] == "assistant" and assistant_model is None:
            raise gr.Error("`strategy` is assistant: there is no draft model here")
        if values["system"]:
            prompt.insert(0, {"role": "system", "content": values["system"]})
        try:
            params = stream_params(values, shown, encode, assistant_model)
            params["client"] = client_id(request, proxies)
            stream = llm.stream(prompt, **params)
        except Exception as error:
            raise gr.Error(describe(error), print_exception=False) from error
        async with aclosing(read_throttled(stream)) as partials:
            async for partial in partials:
                yield partial.text
                if partial.failure is not None:
                    message = describe(partial.failure)
                    raise gr.Error(message, print_exception=False) from partial.failure

    return chat


def _messages(history: list) -> list[dict[str, Any]]:
    """Return the messages, each with a known role and a text."""
    for each in history:
        known = isinstance(each, dict) and each.get("role") in ROLES
        if not known or not isinstance(each.get("content"), str):
            raise gr.Error(
                f"`history` holds {each!r}: a `role` of {', '.join(ROLES)} and a text as `content`",
                print_exception=False,
            )
    return [{name: each[name] for name in _TOLD if each.get(name) is not None} for each in history]


def _settings(settings: dict) -> Values:
    """Return the settings if all of them are known and in range."""
    known = checked(settings)
    for name, value in settings.items():
        if name not in known:
            names = ", ".join(each.name for each in FIELDS)
            raise gr.Error(
                f"`settings` has {name!r} as {value!r}: unknown, or out of range. Known: {names}",
                print_exception=False,
            )
    return known
