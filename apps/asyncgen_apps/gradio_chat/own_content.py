"""Have a browser load nothing from elsewhere for the page, whatever an answer says.

An answer is Markdown of the model's, which a stranger may have dictated: an image in it would be
fetched from wherever it names, with the conversation in its address. Plain ASGI.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from starlette.datastructures import MutableHeaders

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",  # Gradio makes functions of texts
        "style-src 'self' 'unsafe-inline'",
        "font-src 'self' data:",
        "img-src data: blob:",  # not even our own: an image may name `/logout`
        "connect-src 'self'",
        "worker-src 'self' blob:",
        "manifest-src 'self'",
        "base-uri 'self'",
        "form-action 'none'",
    ]
)
"""What the browser may load, and from where; all else is not loaded."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "same-origin",
    "X-DNS-Prefetch-Control": "off",
}


class OwnContentOnly:
    """Middleware that sends the policy with everything."""

    def __init__(self, app: ASGIApp) -> None:
        """Wrap the page's application."""
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Add the headers."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self._app(scope, receive, guarded)
