"""Token ids in, text out: to the terminal, to a blocking iterator, or to an event loop."""

from __future__ import annotations
