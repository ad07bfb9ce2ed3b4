"""The chat as a function that programs call: ``/chat`` of ``gradio_client``.

One question in, the text so far out, each time further on. Settings are those of the panel and no
others: what ``AsyncLLM.stream`` takes beyond them can name files and code.
"""

from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from reprlib import repr as short_repr
from typing import Any

import gradio as gr

from asyncgen_apps.gradio_chat.fields import FIELDS, Values
from asyncgen_apps.gradio_chat.model import ChatModel, encoder
from asyncgen_apps.gradio_chat.sessions import client_id
from asyncgen_apps.gradio_chat.settings import stream_params, wrong
from asyncgen_apps.gradio_chat.statistics import describe
from asyncgen_apps.gradio_chat.streaming import read_throttled
from asyncgen_apps.serving.clients import Proxies
from asyncgen_apps.serving.sliced_json import shown_key

ROLES = ("system", "user", "assistant")
_TOLD = ("role", "content", "reasoning_content", "reasoning", "thinking")
"""Fields of a message of the history that reach the chat template."""


def chat_function(
    llm: ChatModel,
    shown: Callable[[], Values],
    assistant_model: object | None,
    proxies: Proxies,
) -> Callable[..., AsyncGenerator[str, None]]:
    """Make the function.

    Args:
        llm: Model that answers.
        shown: Returns the model's defaults.
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
        if not isinstance(message, str):
            raise _refusal(f"`message` is {_shown(message)}: a text is taken")
        earlier = _messages([] if history is None else history)
        prompt = [*earlier, {"role": "user", "content": message}]
        own = _settings({} if settings is None else settings)
        defaults = shown()
        values = {**defaults, "top_logprobs": 0, **own}
        if values["strategy"] == "assistant" and assistant_model is None:
            raise _refusal("`strategy` is assistant: there is no draft model here")
        if values["system"]:
            prompt.insert(0, {"role": "system", "content": values["system"]})
        try:
            params = stream_params(values, defaults, encode, assistant_model)
            params["client"] = client_id(request, proxies)
            stream = llm.stream(prompt, **params)
        except Exception as error:
            raise _refusal(describe(error)) from error
        async with aclosing(read_throttled(stream)) as partials:
            async for partial in partials:
                yield partial.text
                if partial.failure is not None:
                    raise _refusal(describe(partial.failure)) from partial.failure

    return chat


def _messages(history: object) -> list[dict[str, Any]]:
    """Return the messages, each with a known role and a text, and with nothing unknown."""
    if not isinstance(history, list):
        raise _refusal(f"`history` is {_shown(history)}: a list of messages is taken")
    for each in history:
        known = isinstance(each, dict) and each.get("role") in ROLES
        if not known or not isinstance(each.get("content"), str):
            roles = ", ".join(ROLES)
            reason = f"a `role` of {roles} and a text as `content`"
            raise _refusal(f"`history` holds {_shown(each)}: {reason}")
        unknown = next((name for name in each if name not in _TOLD), None)
        if unknown is not None:
            reason = f"unknown. Known: {', '.join(_TOLD)}"
            raise _refusal(f"`history` holds a message with {_shown(unknown)}: {reason}")
        wrong = next((name for name in _TOLD if not isinstance(each.get(name), str | None)), None)
        if wrong is not None:
            raise _refusal(f"`history` holds {_shown(each[wrong])} as `{wrong}`: a text is taken")
    return [{name: each[name] for name in _TOLD if each.get(name) is not None} for each in history]


def _settings(settings: object) -> Values:
    """Return the settings if all of them are known and in range."""
    if not isinstance(settings, dict):
        raise _refusal(f"`settings` is {_shown(settings)}: an object of names and values is taken")
    fields = {each.name: each for each in FIELDS}
    for name, value in settings.items():
        if name not in fields:
            reason: str | None = f"unknown. Known: {', '.join(fields)}"
        else:
            reason = wrong(fields[name], value)
        if reason is not None:
            raise _refusal(f"`settings` has {_shown(name)} as {_shown(value)}: {reason}")
    return settings


def _refusal(message: str) -> gr.Error:
    """Return an error that the caller is told and that is not logged."""
    return gr.Error(message, print_exception=False)


def _shown(value: object) -> str:
    """Render a value of the caller's for an error: it may be as long as its body."""
    return shown_key(short_repr(value))
