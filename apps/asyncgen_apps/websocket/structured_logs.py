"""Log events with fields.

Every line reads ``event key=value …``. ``record.fields`` has the same as a mapping, for
:class:`JsonLines` and other handlers. Prompts are logged only if the settings allow it.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import defaultdict

_log = logging.getLogger("asyncgen.websocket")
_PLAIN = re.compile(r"[\w.:/+@-]+", re.ASCII)


SPARED_SECONDS = 10.0
"""Time in which a warning is logged `MOST_WARNINGS` times; clients decide how often they come."""

MOST_WARNINGS = 20


class _Warnings:
    """Warnings of one event that are logged, and those that are only counted."""

    def __init__(self) -> None:
        self._began = -SPARED_SECONDS
        self._logged = self._left_out = 0

    def admit(self, now: float) -> int | None:
        """Return the number that was left out before this one; ``None`` leaves it out, too."""
        if now - self._began >= SPARED_SECONDS:
            left_out, self._began, self._logged, self._left_out = self._left_out, now, 1, 0
            return left_out
        if self._logged < MOST_WARNINGS:
            self._logged += 1
            return 0
        self._left_out += 1
        return None


_warnings: defaultdict[str, _Warnings] = defaultdict(_Warnings)


def log_event(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log an event; of warnings at most `MOST_WARNINGS` in `SPARED_SECONDS`, then their number.

    Args:
        event: Name of the event, in a word or two.
        level: Level of the ``logging`` module.
        **fields: Fields of the line; ``None`` is left out.
    """
    if not _log.isEnabledFor(level):
        return
    if level >= logging.WARNING:
        left_out = _warnings[event].admit(time.monotonic())
        if left_out is None:
            return
        fields["left_out"] = left_out or None
    given = {name: value for name, value in fields.items() if value is not None}
    line = " ".join([event, *(f"{name}={_show(value)}" for name, value in given.items())])
    _log.log(level, "%s", line, extra={"fields": {"event": event, **given}})


class JsonLines(logging.Formatter):
    """Formats each record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line; a record without fields has ``message``."""
        fields = getattr(record, "fields", None) or {"message": record.getMessage()}
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            **fields,
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def _show(value: object) -> str:
    """Return a value on one line, also if a client put line breaks into it."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
