"""Answer what is asked of a prompt: its tokens, their text, and messages as one text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from asyncgen import PromptParams
from asyncgen_apps.openai_http.cancellable_response import CancellableResponse
from asyncgen_apps.openai_http.errors import ApiError
from asyncgen_apps.openai_http.large_replies import encode_in_turns
from asyncgen_apps.openai_http.translate import conversation, plain_field

if TYPE_CHECKING:
    from asyncgen_apps.engine import Engine
    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.request_schema import (
        ApplyTemplateRequest,
        DetokenizeRequest,
        TemplateFields,
        TokenizeRequest,
    )
    from asyncgen_apps.openai_http.response_writer import ResponseWriter
    from asyncgen_apps.openai_http.settings import ServerSettings


TOKENIZE_PATH, DETOKENIZE_PATH, TEMPLATE_PATH = "/tokenize", "/detokenize", "/apply-template"
PROMPT_PATHS = (TOKENIZE_PATH, DETOKENIZE_PATH, TEMPLATE_PATH)


class TokenizeResponse(CancellableResponse):
    """The ids of a prompt."""

    def __init__(
        self, llm: Engine, gate: Gate, settings: ServerSettings, body: TokenizeRequest
    ) -> None:
        """Describe the reply; nothing runs before it is called.

        Raises:
            ApiError: There is no prompt, or two.
        """
        if (body.prompt is None) == (body.messages is None):
            raise ApiError(400, "give either `prompt` or `messages`", param="prompt")
        names = {"prompt": "prompt" if body.messages is None else "messages"}
        super().__init__(gate, settings, streams=False, prioritises=False, names=names)
        self._llm = llm
        self._prompt: Any = body.prompt if body.messages is None else conversation(body.messages)
        self._params = _prompt_params(body)

    async def compute(self, reply: ResponseWriter) -> None:
        """Tokenize, and write the ids."""
        prompt = self._prompt
        ids = await self._llm.tokenize(prompt, **self._params) if prompt else []
        most = getattr(self._llm.config, "max_position_embeddings", None)
        content = {"count": len(ids), "max_model_len": most, "tokens": ids}
        await reply.parts(await encode_in_turns(content, self._gate.turns))


class ApplyTemplateResponse(CancellableResponse):
    """The prompt that messages come to."""

    def __init__(
        self, llm: Engine, gate: Gate, settings: ServerSettings, body: ApplyTemplateRequest
    ) -> None:
        """Describe the reply; nothing runs before it is called."""
        names = {"prompt": "messages"}
        super().__init__(gate, settings, streams=False, prioritises=False, names=names)
        self._llm = llm
        self._messages, self._params = conversation(body.messages), _prompt_params(body)

    async def compute(self, reply: ResponseWriter) -> None:
        """Render, and write the text."""
        text = await self._llm.apply_chat_template(self._messages, **self._params)
        await reply.parts(await encode_in_turns({"prompt": text}, self._gate.turns))


class DetokenizeResponse(CancellableResponse):
    """The text of ids."""

    def __init__(
        self, llm: Engine, gate: Gate, settings: ServerSettings, body: DetokenizeRequest
    ) -> None:
        """Describe the reply; nothing runs before it is called.

        Raises:
            ApiError: An id that is none.
        """
        size = cast("Any", llm.config).vocab_size
        wrong = next((one for one in body.tokens if not 0 <= one < size), None)
        if wrong is not None:
            message = f"`tokens` has {wrong}: token ids are from 0 to {size - 1}"
            raise ApiError(400, message, param="tokens")
        super().__init__(gate, settings, streams=False, prioritises=False, names={})
        self._llm, self._ids = llm, body.tokens

    async def compute(self, reply: ResponseWriter) -> None:
        """Decode, on a thread, and write the text."""
        text = await self.on_thread(self._llm.tokenizer.decode, self._ids)
        await reply.whole({"prompt": text})


def _prompt_params(body: TemplateFields) -> PromptParams:
    """Return what is said to the chat template, as the library takes it."""
    said = {name: getattr(body, name, None) for name in PromptParams.__annotations__}
    given = {name: plain_field(value) for name, value in said.items() if value is not None}
    return cast("PromptParams", given)
