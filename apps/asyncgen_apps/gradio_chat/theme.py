"""Theme of the chat page, and the options to launch or mount it in Gradio.

Nothing is fetched from anywhere: system fonts, no analytics, no run history, no share link, and
nothing that an answer names.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from fastapi.exceptions import RequestValidationError
from starlette.middleware import Middleware

from asyncgen_apps.gradio_chat.endpoints import CheckEndpoint, refuse_malformed
from asyncgen_apps.gradio_chat.guard import MAX_BODY_BYTES, GuardPage, client_of
from asyncgen_apps.gradio_chat.own_content import OwnContentOnly
from asyncgen_apps.gradio_chat.session_cleanup import MAX_MEMORY_BYTES, SessionCleanupMiddleware
from asyncgen_apps.serving.get_turns import GetTurns
from asyncgen_apps.serving.origins import CheckHost

if TYPE_CHECKING:
    from collections.abc import Sequence

COPY_ANSWER = Path(__file__).with_name("copy.js").read_text(encoding="utf-8")
ON_LOAD = (
    Path(__file__)
    .with_name("page.js")
    .read_text(encoding="utf-8")
    .replace("COPY_ANSWER", COPY_ANSWER.strip())
)
CLOSE_ON_PHONE = """() => {
  const close = document.querySelector("#conversations.open .toggle-button");
  if (close && window.innerWidth < 768) close.click();
}"""
TOGGLE_THEME = """() => {
  const dark = document.body.classList.toggle("dark");
  localStorage.setItem("asyncgen.theme", dark ? "dark" : "light");
}"""

HEAD = '<link rel="icon" href="data:,">'
"""A browser would ask for an icon, which the policy of the page refuses."""

STYLE = Path(__file__).with_name("style.css")
SANS = ("ui-sans-serif", "system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif")
MONO = ("ui-monospace", "SFMono-Regular", "Menlo", "Consolas", "DejaVu Sans Mono", "monospace")


def theme() -> gr.themes.Base:
    """Return the colours and fonts; fonts are those of the system."""
    return gr.themes.Base(
        primary_hue="indigo",
        secondary_hue="indigo",
        neutral_hue="slate",
        radius_size="lg",
        font=SANS,
        font_mono=MONO,
    ).set(
        # Text has 4.5 times the contrast of its ground, at least.
        body_text_color_subdued="*neutral_600",
        block_info_text_color="*neutral_600",
        block_info_text_color_dark="*neutral_300",
        body_text_color_subdued_dark="*neutral_300",
        block_label_text_color="*neutral_600",
        block_title_text_color="*neutral_700",
        button_primary_background_fill="*primary_600",
        button_primary_background_fill_hover="*primary_700",
        button_primary_background_fill_dark="*primary_600",
        color_accent="*primary_600",
        input_placeholder_color="*neutral_500",
        input_placeholder_color_dark="*neutral_400",
    )


def launch_options(
    *,
    origins: Sequence[str] = (),
    allowed_hosts: Sequence[str] | None = None,
    max_body_bytes: int = MAX_BODY_BYTES,
    max_memory_bytes: int = MAX_MEMORY_BYTES,
) -> dict[str, Any]:
    """Return keyword arguments that ``launch`` and ``gr.mount_gradio_app`` both take.

    Among them is what protects the page, wherever it hangs: it takes no files, nothing that
    changes something from pages of other sites, and keeps little of those who have gone.

    Args:
        origins: Origins whose pages may speak to this one beside its own; ``"*"`` is any.
        allowed_hosts: Names that the page may be called by; ``None`` or ``"*"`` is any.
        max_body_bytes: Most bytes of an event of the page, which brings all chats of its browser.
        max_memory_bytes: Most bytes that are kept of all sessions, and half of it of those of one
            client; the oldest idle ones give way.

    Raises:
        ValueError: A limit is not above 0.
    """
    for name, value in (("max_body_bytes", max_body_bytes), ("max_memory_bytes", max_memory_bytes)):
        if value <= 0:
            raise ValueError(f"{name} is {value}: must be above 0")
    guards = [
        Middleware(OwnContentOnly),
        Middleware(CheckHost, names=allowed_hosts),
        Middleware(GetTurns, client_of=client_of),
        Middleware(GuardPage, origins=origins, max_body_bytes=max_body_bytes),
        Middleware(CheckEndpoint),
        Middleware(SessionCleanupMiddleware, max_memory_bytes=max_memory_bytes),
    ]
    return {
        "app_kwargs": {
            "middleware": guards,
            "exception_handlers": {RequestValidationError: refuse_malformed},
        },
        "theme": theme(),
        "css": STYLE.read_text(encoding="utf-8"),
        "head": HEAD,
        "footer_links": [],
        "run_history": False,
        "ssr_mode": False,
        "enable_monitoring": False,
        "pwa": False,
        "mcp_server": False,
    }
