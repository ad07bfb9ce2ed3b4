"""Log lines with fields: one event, and what it is about.

Every line reads ``event key=value …``, and carries the same as a mapping in ``record.fields`` for
:class:`JsonLines` and for handlers of other people. Prompts get in only where the settings say so.
"""

from __future__ import annotations

import json
import logging
import re
import time

_log = logging.getLogger("asyncgen.websocket")
_PLAIN = re.compile(r"[\w.:/+@-]+", re.ASCII)


def say(event: str, *, level: int = logging.INFO, **fields: object) -> None:
    """Log an event.

    Args:
        event: What happened, in a word or two.
        level: Of the ``logging`` module.
        **fields: What it is about; ``None`` is left out.
    """
    if not _log.isEnabledFor(level):
        return
    given = {name: value for name, value in fields.items() if value is not None}
    line = " ".join([event, *(f"{name}={_show(value)}" for name, value in given.items())])
    _log.log(level, "%s", line, extra={"fields": {"event": event, **given}})


class JsonLines(logging.Formatter):
    """Lays records out as one JSON object a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line; a record without fields has ``message``."""
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
    """A value on one line, whatever a client has put into it."""
    if isinstance(value, float):
        return f"{value:.3f}"
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
