"""The routes of the API: models and completions.

Each turns a checked body into a response, such as
:class:`~asyncgen_apps.openai_http.answer.CompletionResponse`; nothing runs here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request, Response

from asyncgen import EngineClosedError
from asyncgen_apps.openai_http.answer import CompletionResponse, UsageOptions
from asyncgen_apps.openai_http.bodies import BODIES, checked, plan_reply, require_model
from asyncgen_apps.openai_http.embeddings import EMBED_PATH, EmbeddingsResponse
from asyncgen_apps.openai_http.errors import LONG, ApiError
from asyncgen_apps.openai_http.request_schema import (
    ApplyTemplateRequest,
    ChatCompletionRequest,
    CompletionRequest,
    DetokenizeRequest,
    EmbeddingRequest,
    TokenizeRequest,
)
from asyncgen_apps.openai_http.response_schema import (
    ERRORS,
    ChatCompletion,
    DetokenizedText,
    EmbeddingList,
    Model,
    ModelList,
    RenderedPrompt,
    TextCompletion,
    Tokens,
)
from asyncgen_apps.openai_http.strict_route import StrictRoute
from asyncgen_apps.openai_http.tokens import (
    DETOKENIZE_PATH,
    TEMPLATE_PATH,
    TOKENIZE_PATH,
    ApplyTemplateResponse,
    DetokenizeResponse,
    TokenizeResponse,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pydantic import BaseModel

    from asyncgen_apps.engine import Engine
    from asyncgen_apps.openai_http.cancellable_response import CancellableResponse
    from asyncgen_apps.openai_http.concurrency_limit import Gate
    from asyncgen_apps.openai_http.middleware import Answers
    from asyncgen_apps.openai_http.settings import ServerSettings


BODY_OF: Mapping[str, type[BaseModel]] = {
    **BODIES,
    EMBED_PATH: EmbeddingRequest,
    TOKENIZE_PATH: TokenizeRequest,
    DETOKENIZE_PATH: DetokenizeRequest,
    TEMPLATE_PATH: ApplyTemplateRequest,
}
"""What is sent to each path."""

_LONGEST = (
    ("prompt", "max_position_embeddings", "the context holds {} tokens", LONG),
    ("input", "max_position_embeddings", "the context holds {} tokens", LONG),
    ("messages", "max_position_embeddings", "the context holds {}, and each takes one", LONG),
    ("logit_bias", "vocab_size", "the vocabulary holds {}", None),
)
"""Fields, what of the model bounds them, why, and the code of the refusal."""


@dataclass(frozen=True, slots=True)
class Service:
    """Engine, settings and limits that the routes use.

    Attributes:
        llm: The engine.
        gate: Lets requests in that generate.
        settings: Names of the model, among others.
        since: Start of the service, in seconds since 1970.
    """

    llm: Engine
    gate: Gate
    settings: ServerSettings
    since: int = field(default_factory=lambda: int(time.time()))

    def require_model(self, name: str) -> None:
        """Refuse a model that is not here."""
        require_model(name, self.settings.model_names)

    def check_list_lengths(self, content: object) -> None:
        """Refuse lists that are longer than the model can use, before anything looks into them.

        Raises:
            ApiError: Names the field.
        """
        try:
            config = self.llm.config
        except EngineClosedError:
            return
        for field_name, bound, why, code in _LONGEST:
            most = getattr(config, bound, None)
            given = content.get(field_name) if isinstance(content, dict) else None
            if field_name in ("prompt", "input") and not _are_ids(given):
                continue
            if isinstance(most, int) and isinstance(given, list | dict) and len(given) > most:
                message = f"`{field_name}` has {len(given)} entries: {why.format(most)}; send fewer"
                raise ApiError(400, message, param=field_name, code=code)

    def model(self, name: str) -> dict[str, object]:
        """Describe a model as the API does."""
        described = {"id": name, "object": "model", "created": self.since, "owned_by": "asyncgen"}
        return {**described, "fingerprint": self.llm.fingerprint if self.llm.is_healthy else None}

    def answer(
        self, body: ChatCompletionRequest | CompletionRequest, request_id: str
    ) -> CompletionResponse:
        """Plan the reply to a request.

        Raises:
            ApiError: It cannot be answered.
        """
        self.require_model(body.model)
        usage_options = _usage_options(body)
        planned, serializer = plan_reply(body, request_id)
        return CompletionResponse(
            self.llm, self.gate, self.settings, planned, serializer, usage_options
        )

    def embed(self, body: EmbeddingRequest) -> EmbeddingsResponse:
        """Plan the reply to a request for embeddings.

        Raises:
            ApiError: It cannot be answered.
        """
        self.require_model(body.model)
        return EmbeddingsResponse(self.llm, self.gate, self.settings, body)

    def tokenize(self, body: TokenizeRequest) -> TokenizeResponse:
        """Plan the reply to a request for token ids.

        Raises:
            ApiError: It cannot be answered.
        """
        if body.model is not None:
            self.require_model(body.model)
        return TokenizeResponse(self.llm, self.gate, self.settings, body)

    def apply_template(self, body: ApplyTemplateRequest) -> ApplyTemplateResponse:
        """Plan the reply to a request for the text of messages.

        Raises:
            ApiError: It cannot be answered.
        """
        if body.model is not None:
            self.require_model(body.model)
        return ApplyTemplateResponse(self.llm, self.gate, self.settings, body)

    def detokenize(self, body: DetokenizeRequest) -> DetokenizeResponse:
        """Plan the reply to a request for the text of ids.

        Raises:
            ApiError: It cannot be answered.
        """
        if body.model is not None:
            self.require_model(body.model)
        return DetokenizeResponse(self.llm, self.gate, self.settings, body)


def fast_path_handlers(service: Service) -> Answers:
    """Return the handlers of the fast path, by path."""

    def answer(
        kind: type[ChatCompletionRequest] | type[CompletionRequest],
        content: object,
        request_id: str,
    ) -> CancellableResponse:
        service.check_list_lengths(content)
        return service.answer(checked(kind, content), request_id)

    def embed(content: object, request_id: str) -> CancellableResponse:
        service.check_list_lengths(content)
        return service.embed(checked(EmbeddingRequest, content))

    def tokenize(content: object, request_id: str) -> CancellableResponse:
        service.check_list_lengths(content)
        return service.tokenize(checked(TokenizeRequest, content))

    def apply_template(content: object, request_id: str) -> CancellableResponse:
        service.check_list_lengths(content)
        return service.apply_template(checked(ApplyTemplateRequest, content))

    def detokenize(content: object, request_id: str) -> CancellableResponse:
        return service.detokenize(checked(DetokenizeRequest, content))

    others = {
        EMBED_PATH: embed,
        TOKENIZE_PATH: tokenize,
        DETOKENIZE_PATH: detokenize,
        TEMPLATE_PATH: apply_template,
    }
    return {**{path: partial(answer, kind) for path, kind in BODIES.items()}, **others}


def api_routes(service: Service) -> APIRouter:
    """Make the routes below ``/v1``."""
    settings = service.settings
    router = APIRouter(prefix="/v1", responses=ERRORS, route_class=StrictRoute)

    @router.get("/models", response_model=ModelList)
    async def list_models() -> dict[str, object]:
        """List the models."""
        return {"object": "list", "data": [service.model(name) for name in settings.model_names]}

    @router.get("/models/{model:path}", response_model=Model)
    async def get_model(model: str) -> dict[str, object]:
        """Describe a model."""
        service.require_model(model)
        return service.model(model)

    @router.post("/chat/completions", responses=_reply(ChatCompletion))
    async def create_chat_completion(body: ChatCompletionRequest, request: Request) -> Response:
        """Answer a conversation."""
        return service.answer(body, request.state.request_id)

    @router.post("/completions", responses=_reply(TextCompletion))
    async def create_completion(body: CompletionRequest, request: Request) -> Response:
        """Continue a text."""
        return service.answer(body, request.state.request_id)

    @router.post("/embeddings", response_model=EmbeddingList)
    async def create_embeddings(body: EmbeddingRequest) -> Response:
        """Turn texts into vectors."""
        return service.embed(body)

    return router


def token_routes(service: Service) -> APIRouter:
    """Make the routes beside ``/v1``: two of vLLM, and one of llama.cpp."""
    router = APIRouter(responses=ERRORS, route_class=StrictRoute)

    @router.post(TOKENIZE_PATH, response_model=Tokens)
    async def tokenize(body: TokenizeRequest) -> Response:
        """Tell the token ids of a text, or of a conversation."""
        return service.tokenize(body)

    @router.post(DETOKENIZE_PATH, response_model=DetokenizedText)
    async def detokenize(body: DetokenizeRequest) -> Response:
        """Tell the text of token ids."""
        return service.detokenize(body)

    @router.post(TEMPLATE_PATH, response_model=RenderedPrompt)
    async def apply_template(body: ApplyTemplateRequest) -> Response:
        """Tell the prompt that the chat template makes of a conversation."""
        return service.apply_template(body)

    return router


def _are_ids(prompt: object) -> bool:
    """Tell whether a prompt is one list of token ids; other lists are several prompts."""
    return isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], int)


def _usage_options(body: ChatCompletionRequest | CompletionRequest) -> UsageOptions | None:
    """Return the streaming options; ``None`` for a reply in one piece."""
    options = body.stream_options
    progress = bool(body.return_progress)
    if not body.stream:
        if progress:
            message = "`return_progress` needs `stream: true`"
            raise ApiError(400, message, param="return_progress")
        if options is not None:
            message = "`stream_options` needs `stream: true`"
            raise ApiError(400, message, param="stream_options")
        return None
    if options is None:
        return UsageOptions(progress=progress)
    continuous = bool(options.continuous_usage_stats)
    if continuous and not options.include_usage:
        name = "stream_options.continuous_usage_stats"
        raise ApiError(400, f"`{name}` needs `include_usage`", param=name)
    return UsageOptions(bool(options.include_usage), continuous, progress)


def _reply(model: type) -> dict[int | str, dict[str, object]]:
    """Document a reply that comes in one piece or as events."""
    return {200: {"model": model, "content": {"text/event-stream": {"schema": {"type": "string"}}}}}
