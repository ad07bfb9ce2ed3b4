"""Puts the application together: routes, what stands before them, and how errors look.

The application is given an engine that is open, and does not close it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException
from starlette.requests import Request  # noqa: TC002  read by FastAPI
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from asyncgen_apps.metrics import exposition
from asyncgen_apps.openai_http.bodies import CHAT_PATH, TEXT_PATH
from asyncgen_apps.openai_http.concurrency_limit import Gate
from asyncgen_apps.openai_http.embeddings import EMBED_PATH
from asyncgen_apps.openai_http.errors import (
    SERVER,
    ApiError,
    clipped,
    from_exception,
    from_validation,
)
from asyncgen_apps.openai_http.middleware import (
    REQUEST_ID,
    ApiKeyMiddleware,
    BodyLimitMiddleware,
    FastPathMiddleware,
    RequestIdMiddleware,
)
from asyncgen_apps.openai_http.reference import PAGE_HEADERS, reference_page
from asyncgen_apps.openai_http.request_schema import MAX_INPUTS, MAX_PROMPTS
from asyncgen_apps.openai_http.routes import (
    BODY_OF,
    Service,
    api_routes,
    fast_path_handlers,
    token_routes,
)
from asyncgen_apps.openai_http.tokens import PROMPT_PATHS
from asyncgen_apps.serving.clients import Keys, Proxies
from asyncgen_apps.serving.get_turns import GetTurns
from asyncgen_apps.serving.limits import MOST_BODY, longest_request
from asyncgen_apps.serving.origins import CheckHost, route_path

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from asyncgen_apps.engine import Engine
    from asyncgen_apps.openai_http.settings import ServerSettings


INFO_PATH = "/server_info"
CODES = {
    404: "not_found",
    405: "method_not_allowed",
    408: "body_timeout",
    413: "request_too_large",
    429: "overloaded",
}
"""Words for what the framework refuses."""
KINDS = {429: "rate_limit_error"}
UNREADABLE = (
    "the body cannot be read: not UTF-8, nested too deep, or a number of thousands of digits"
)


def create_app(
    llm: Engine,
    settings: ServerSettings,
    gate: Gate | None = None,
    figures: Callable[[], Awaitable[bytes]] | None = None,
) -> FastAPI:
    """Make the application.

    Args:
        llm: An open engine; closing it is up to the caller.
        settings: Names, keys, limits.
        gate: Lets requests in; the caller's own where it wants to drain.
        figures: Source of ``/metrics``; ``None`` reports the engine's metrics.

    Returns:
        An ASGI application. Its ``state.gate`` is the gate.
    """
    gate = gate or Gate(settings.max_requests, is_shared=settings.has_several_clients)
    app = FastAPI(
        title="asyncgen",
        description="A local language model behind the API of OpenAI.",
        version="1",
        openapi_url=None,  # ours is made on a worker thread
        docs_url=None,
        redoc_url=None,
    )
    app.state.gate = gate
    service = Service(llm, gate, settings)
    app.include_router(api_routes(service))
    app.include_router(token_routes(service))
    _add_health(app, llm, gate)
    _add_description(app, settings)
    _add_metrics(app, figures or partial(exposition, llm, settings.model_names[0]))
    _add_reference(app, settings)
    _add_errors(app)
    # The last one added is the outermost: also a refusal has an id, and headers for browsers.
    app.add_middleware(FastPathMiddleware, answers=fast_path_handlers(service))
    app.add_middleware(
        BodyLimitMiddleware,
        limits=_body_limits(llm, settings),
        seconds=settings.body_seconds,
        is_shared=settings.has_several_clients,
    )
    proxies = Proxies(settings.trusted_proxies)
    app.add_middleware(
        ApiKeyMiddleware,
        keys=Keys(settings.api_keys, settings.priority_keys),
        proxies=proxies,
        also=_guarded(settings),
    )
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=["GET", "POST"],
            allow_headers=["*"],
            expose_headers=[REQUEST_ID, "retry-after"],
        )
    app.add_middleware(GetTurns, client_of=lambda scope: proxies.client_of(scope).id)
    app.add_middleware(CheckHost, names=settings.allowed_hosts)
    app.add_middleware(RequestIdMiddleware)
    return app


def _body_limits(llm: Engine, settings: ServerSettings) -> Mapping[str, int]:
    """Most bytes of a body, by path; ``""`` stands for all others."""
    if settings.max_body_bytes is not None:
        return dict.fromkeys(("", *PROMPT_PATHS), settings.max_body_bytes)
    return {
        "": MOST_BODY,
        **dict.fromkeys((CHAT_PATH, *PROMPT_PATHS), longest_request(llm, MOST_BODY)),
        TEXT_PATH: longest_request(llm, MOST_BODY, prompts=MAX_PROMPTS),
        EMBED_PATH: longest_request(llm, MOST_BODY, prompts=MAX_INPUTS),
    }


def _guarded(settings: ServerSettings) -> frozenset[str]:
    """Paths outside of ``/v1`` that need a key, where there are keys."""
    figures = () if settings.open_metrics else ("/metrics",)
    docs = () if settings.open_docs else ("/docs", "/openapi.json")
    return frozenset((*figures, *docs, INFO_PATH, *PROMPT_PATHS))


def _add_health(app: FastAPI, llm: Engine, gate: Gate) -> None:
    """Liveness, and readiness."""

    @app.head("/health", include_in_schema=False)
    @app.get("/health", response_class=PlainTextResponse, responses={503: {}})
    async def health() -> PlainTextResponse:
        """Tell whether the engine is alive; if it is not, only a restart helps."""
        if not llm.is_healthy:
            return _say("the engine is dead", 503)
        # No failure: it serves all but long texts, and a restart would end what runs.
        return _say("degraded" if llm.is_degraded else "ok")

    @app.head("/ready", include_in_schema=False)
    @app.get("/ready", response_class=PlainTextResponse, responses={503: {}})
    async def ready() -> PlainTextResponse:
        """Tell whether requests should be sent here."""
        if not llm.is_healthy:
            return _say("the engine is dead", 503)
        return _say("ok") if gate.ready else _say("shutting down", 503)


def _add_description(app: FastAPI, settings: ServerSettings) -> None:
    """Add the routes that SGLang's router reads before it sends requests."""

    @app.get(INFO_PATH)
    async def server_info() -> dict[str, str]:
        """The model's name, as SGLang's router reads it."""
        return {"served_model_name": settings.model_names[0]}


def _say(text: str, status: int = 200) -> PlainTextResponse:
    return PlainTextResponse(text + "\n", status)


def _add_metrics(app: FastAPI, figures: Callable[[], Awaitable[bytes]]) -> None:
    """The engine's figures for Prometheus."""

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Figures of the engine, under the names of vLLM."""
        return Response(await figures(), media_type=CONTENT_TYPE_LATEST)


def _add_reference(app: FastAPI, settings: ServerSettings) -> None:
    """The fields, for programs and for reading; FastAPI calls plain functions on worker threads.

    Describing them takes tenths of a second, once.
    """

    @app.get("/openapi.json", include_in_schema=False)
    def openapi() -> JSONResponse:
        """Every path with its fields, as OpenAPI."""
        return JSONResponse(app.openapi())

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    def docs(request: Request) -> HTMLResponse:
        """Every path with its fields; the page runs no script and loads nothing."""
        address = str(request.base_url).rstrip("/")
        model, has_keys = settings.model_names[0], bool(settings.api_keys)
        page = reference_page(app.openapi(), address, model, has_keys)
        return HTMLResponse(page, headers=PAGE_HEADERS)


def _add_errors(app: FastAPI) -> None:
    """Give every error the API's shape."""

    @app.exception_handler(ApiError)
    async def refused(request: Request, error: ApiError) -> Response:
        return _reply(error)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: Request, error: RequestValidationError) -> Response:
        body = BODY_OF.get(route_path(request.scope))
        return _reply(from_validation(error.errors(), body))

    @app.exception_handler(HTTPException)
    async def http(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # the framework uses it for nothing else
            return _reply(ApiError(400, UNREADABLE, code="invalid_json"))
        usual = SERVER if error.status_code >= 500 else "invalid_request_error"
        kind = KINDS.get(error.status_code, usual)
        said = str(error.detail)
        if error.status_code == 404:
            said = f"there is nothing at {clipped(request.url.path)}; /docs lists what there is"
        api_error = ApiError(error.status_code, said, kind, code=CODES.get(error.status_code))
        return _reply(api_error, error.headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        return _reply(from_exception(error))


def _reply(error: ApiError, headers: Mapping[str, str] | None = None) -> JSONResponse:
    return JSONResponse(error.body(), error.status, {**(headers or {}), **error.headers()})
