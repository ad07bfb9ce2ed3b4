"""Share the page's jobs, and the room for events that wait, among its clients.

Gradio runs 40 events at a time, in the order in which they came, and lets any number wait: who
sends hundreds of questions would have everybody behind them wait for all the answers. Here a client
has at most seven times the jobs that it leaves free, and as large a share of the events. Knows
Gradio's queue.
"""

from __future__ import annotations

import inspect
import random
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncgen_apps.serving.shared_budget import MOST_TIMES

if TYPE_CHECKING:
    import gradio as gr

MOST_EVENTS = 512
"""Events that run or wait. Each holds the head of its request, up to 64 KiB, and its body."""

KNOWN = "6.31.*"
"""A Gradio whose queue is known here."""

CLIENT = "asyncgen.chat.client"
"""Key of a scope: whose event it brings."""


_REPLACED = {"get_events": ("self",), "send_message": ("self", "event", "event_message")}
"""Methods of a queue in whose place ours are put, here and where unread messages are counted."""

_READ = (
    "active_jobs",
    "event_queue_per_concurrency_id",
    "event_ids_to_events",
    "pending_event_ids_session",
    "pending_messages_per_session",
)


def check_queue() -> None:
    """Check that Gradio's queue still is the one that is known here, before a page is built.

    Raises:
        ImportError: Another Gradio is installed: our methods would not be called, and one client
            could have every job and fill the memory.
    """
    from gradio.queueing import Queue

    made = inspect.unwrap(Queue.__init__).__code__.co_names
    changed = [name for name in _READ if name not in made]
    for name, parameters in _REPLACED.items():
        method = getattr(Queue, name, None)
        if method is None or tuple(inspect.signature(method).parameters) != parameters:
            changed.append(name)
    starting = getattr(Queue, "start_processing", None)
    if starting is None or "get_events" not in inspect.unwrap(starting).__code__.co_names:
        changed.append("start_processing")
    if changed:
        from importlib.metadata import version

        raise ImportError(
            f"gradio {version('gradio')} has another queue than the chat page knows "
            f"({', '.join(changed)}), and clients would not be held to their shares: "
            f"pip install 'gradio=={KNOWN}'"
        )


def share_jobs(page: gr.Blocks) -> None:
    """Have the queue of a page choose the next event by its client; idempotent."""
    queue: Any = page._queue
    if getattr(queue.get_events, "func", None) is not _next:
        queue.get_events = partial(_next, queue)


def refusal(page: gr.Blocks, client: str) -> str | None:
    """Say why an event of a client may not wait; ``None`` if it may.

    Args:
        page: The page.
        client: Whose event it is.
    """
    held = Counter(map(_client_of, page._queue.event_ids_to_events.values()))
    total, own = held.total(), held[client]
    if _fits(own, MOST_EVENTS - total - 1):
        return None
    return f"{total} events of this page run or wait, {own} of them yours, and {MOST_EVENTS}"


def _next(queue: Any) -> tuple[list[Any], bool, str] | None:
    """Return the event that has waited longest of the clients that may have a job more.

    In place of ``Queue.get_events``. No function of the page takes several events at once.
    """
    held = Counter(_client_of(event) for job in queue.active_jobs if job for event in job)
    free = queue.active_jobs.count(None) - 1
    names = list(queue.event_queue_per_concurrency_id)
    random.shuffle(names)
    for name in names:
        waiting = queue.event_queue_per_concurrency_id[name]
        most = waiting.concurrency_limit
        if most is not None and waiting.current_concurrency >= most:
            continue
        for event in waiting.queue:
            if _fits(held[_client_of(event)], free):
                waiting.queue.remove(event)
                return [event], False, name
    return None


def _fits(held: int, free: int) -> bool:
    """Tell whether a client may have one more of what then leaves so many free."""
    return free >= 0 and (not held or held + 1 <= MOST_TIMES * free)


def _client_of(event: Any) -> str:
    scope = getattr(event.request, "scope", {})
    return str(scope.get(CLIENT, ""))
