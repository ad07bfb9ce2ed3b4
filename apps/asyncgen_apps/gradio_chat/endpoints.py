"""Refuse events for functions that the page does not have, or with other arguments than they take.

Gradio looks a function up without asking whether it is there, and calls it with what came: that
ends in a status of 500 and a traceback, or drops what is too much. Plain ASGI; knows Gradio's
functions and the paths of its events.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse

from asyncgen_apps.serving.origins import refuse_request
from asyncgen_apps.serving.sliced_json import shown_key

if TYPE_CHECKING:
    import gradio as gr
    from starlette.requests import Request
    from starlette.types import ASGIApp, Receive, Scope, Send

CALLED = "asyncgen.chat.called"
"""Key of a scope: what the event in its body calls."""

_MOST_NAMES = 16
"""Names that are looked at; no function has as many parameters by name."""

_CALLING = re.compile(
    r"/gradio_api/(?:queue/join|(?:run|api)/(?P<run>[^/]+)|call/v2/(?P<named>[^/]+)"
    r"|call/(?P<call>[^/]+))/?$"
)

_LISTENING = re.compile(r"/gradio_api/(?:queue/data|call/(?:v2/)?[^/]+/[^/]+)/?$")


@dataclass(frozen=True, slots=True)
class Called:
    """What an event says about the function that it calls.

    Attributes:
        fn_index: Number of the function; ``None`` if there is none.
        wrong: What is wrong with it by itself.
        num_data: Entries of its ``data``; ``None`` if that is no list, which Gradio refuses.
        names: First names of its fields.
    """

    fn_index: int | None
    wrong: str | None
    num_data: int | None
    names: tuple[str, ...]


def called_by(event: object) -> Called:
    """Read what an event calls."""
    fields: dict[str, Any] = event if isinstance(event, dict) else {}
    index, data = fields.get("fn_index"), fields.get("data")
    wrong = None
    if index is not None and type(index) is not int:
        wrong = "`fn_index` is not the number of a function"
    elif fields.get("batched"):
        wrong = "`batched` is set: an event of this page is one event"
    names = tuple(map(shown_key, list(fields)[:_MOST_NAMES]))
    number = index if type(index) is int else None
    return Called(number, wrong, len(data) if isinstance(data, list) else None, names)


class CheckEndpoint:
    """Middleware that lets only calls of functions through that the page has."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap the page's application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the function that an event calls, and how much it brings for it."""
        path = _CALLING.search(scope["path"]) if CALLED in scope else None
        if path is not None:
            refusal = _refuse(scope["app"].get_blocks(), path, scope[CALLED])
            if refusal is not None:
                status, code, message = refusal
                await refuse_request(scope, send, status, code, message)
                return
        if not _LISTENING.search(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        except Exception as error:
            # Gradio has told the client so in its last event.
            if not _is_unknown_session(error):
                raise
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_unknown_session(error: BaseException) -> bool:
    """Tell whether Gradio raised since there is no such session, behind the head of an answer."""
    found: BaseException | None = error
    while found is not None:
        if isinstance(found, HTTPException) and found.status_code == 404:
            return True
        found = found.__cause__
    return False


def _refuse(page: gr.Blocks, path: re.Match[str], called: Called) -> tuple[int, str, str] | None:
    """Return status, code and message of an error, if there is one."""
    if path["named"] is not None:
        return _refuse_named(page, path["named"], called)
    if called.wrong is not None:
        return 400, "bad_event", called.wrong
    name = path["call"] or path["run"]
    if name is None and called.fn_index is None:
        return 400, "bad_event", "`fn_index` is missing"
    if path["call"] is None and called.fn_index is not None:
        fn, shown = page.fns.get(called.fn_index), shown_key(f"{called.fn_index}")
    else:
        fn = next((each for each in page.fns.values() if name and each.api_name == name), None)
        shown = f"`{shown_key(name or '')}`"
    if fn is None or fn.fn is None:
        return 404, "unknown_endpoint", f"there is no function {shown} here"
    taken = {len(fn.inputs)}
    if path["call"] is not None:
        taken.add(sum(not block.skip_api for block in fn.inputs))
    if called.num_data is None or called.num_data in taken or fn.cancels:
        return None
    most = max(taken)
    return 400, "bad_event", f"`data` has {called.num_data} entries: {shown} takes {most}"


def _refuse_named(page: gr.Blocks, name: str, called: Called) -> tuple[int, str, str] | None:
    """Check a call whose arguments have names."""
    endpoint = page.get_api_info()["named_endpoints"].get(f"/{name}")
    if endpoint is None:
        return 404, "unknown_endpoint", f"there is no function `{shown_key(name)}` here"
    known = {each["parameter_name"]: each for each in endpoint["parameters"]}
    unknown = next((each for each in called.names if each not in known), None)
    if unknown is not None:
        return 400, "bad_event", f"`{unknown}` is unknown: `{name}` takes {', '.join(known)}"
    for each, about in known.items():
        if each not in called.names and not about["parameter_has_default"]:
            return 400, "bad_event", f"`{each}` is missing"
    return None


async def refuse_malformed(request: Request, error: Exception) -> JSONResponse:
    """Answer an event whose fields have other types, as FastAPI does but without what came."""
    errors: Any = getattr(error, "errors", list)()
    detail = [
        {
            "type": each.get("type"),
            "loc": [shown_key(str(part)) for part in each.get("loc", ())],
            "msg": shown_key(str(each.get("msg"))),
        }
        for each in errors
    ]
    return JSONResponse({"detail": detail}, 422)
