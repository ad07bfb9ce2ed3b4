"""Theme of the chat page, and the options to launch or mount it in Gradio.

Nothing is fetched from anywhere: system fonts, no analytics, no run history, no share link.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import gradio as gr
from fastapi.exceptions import RequestValidationError
from starlette.middleware import Middleware

from asyncgen_apps.gradio_chat.endpoints import CheckEndpoint, refuse_malformed
from asyncgen_apps.gradio_chat.guard import MAX_BODY_BYTES, GuardPage
from asyncgen_apps.gradio_chat.session_cleanup import MAX_MEMORY_BYTES, SessionCleanupMiddleware
from asyncgen_apps.serving.get_turns import GetTurns
from asyncgen_apps.serving.origins import CheckHost

if TYPE_CHECKING:
    from collections.abc import Sequence

COPY_ANSWER = Path(__file__).with_name("copy.js").read_text(encoding="utf-8")
CLOSE_ON_PHONE = """() => {
  const close = document.querySelector("#conversations.open .toggle-button");
  if (close && window.innerWidth < 768) close.click();
}"""
LEAVE_EDITING = """(event) => {
  const leaves = event.key === "Escape" && !event.isComposing;
  if (!leaves || !event.target.matches("#chat textarea")) return;
  document.querySelector('#chat button[aria-label="Cancel"]')?.click();
  document.querySelector("#box textarea").focus();
}"""
ON_LOAD = f"""() => {{
  const kept = localStorage.getItem("asyncgen.theme");
  if (kept) document.body.classList.toggle("dark", kept === "dark");
  ({CLOSE_ON_PHONE})();
  document.querySelector("#settings .toggle-button").title = "Settings";
  document.querySelector("#conversations .toggle-button").title = "Chats";
  document.querySelector("#theme").title = "Light or dark";
  document.addEventListener("click", {COPY_ANSWER.strip()}, true);
  document.addEventListener("keydown", {LEAVE_EDITING});
  window.addEventListener("storage", (event) => {{
    if (event.key === "asyncgen.chats") document.querySelector("#changed").click();
  }});
}}"""
TOGGLE_THEME = """() => {
  const dark = document.body.classList.toggle("dark");
  localStorage.setItem("asyncgen.theme", dark ? "dark" : "light");
}"""

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
        Middleware(CheckHost, names=allowed_hosts),
        Middleware(GetTurns),
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
        "footer_links": [],
        "run_history": False,
        "ssr_mode": False,
        "enable_monitoring": False,
        "pwa": False,
        "mcp_server": False,
    }
