"""Start, pause, keep and end the decode thread of a manager, and its engine."""

from __future__ import annotations

import logging
import threading
import time
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from asyncgen.engine.setup.model_in_use import weights_open
from asyncgen.engine.thread import DecodeThread
from asyncgen.errors import EngineClosedError
from asyncgen.runtime.cpu_threads import computing_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from asyncgen.engine.core import Engine
    from asyncgen.engine.requests.request import Request
    from asyncgen.reference.continuous_batching.frontend import Frontend


_log = logging.getLogger("asyncgen.engine")
_THREAD = "asyncgen-decode"
KEPT = "_cached_continuous_batching_manager"
"""Attribute of a model with the manager that is kept for its next session."""


class ManagedThread:
    """The decode thread of a manager, from its start to its end, and again.

    Attributes:
        model: The model.
        frontend: Makes the requests, and the engine.
        warmed_up: Whether decode steps were recorded in advance, where they are recorded.
        is_destroyed: Whether it cannot be started any more.
    """

    def __init__(self, model: Any, frontend: Frontend) -> None:
        """Start without a thread.

        Args:
            model: The model.
            frontend: Makes the requests, and the engine.
        """
        self.model, self.frontend = model, frontend
        self.warmed_up = self.is_destroyed = False
        self._lock = threading.RLock()
        self._thread: DecodeThread[Engine] | None = None
        self._early: list[Request] = []

    @property
    def is_usable(self) -> bool:
        """True if it can be started again with what it keeps: it was not destroyed, nor died."""
        died = self._thread is not None and self._thread.death is not None
        return not self.is_destroyed and not died

    def warmup(self) -> None:
        """Allocate the memory, and record decode steps where they are recorded (CUDA).

        :meth:`start` does it otherwise. While the manager runs there is nothing left to do.

        Raises:
            EngineClosedError: It was destroyed.
        """
        with self._lock:
            self._require_undestroyed()
            if not self.is_running():
                self.frontend.open_engine().record_steps()
                self.warmed_up = True

    def start(self, *, warmup: bool = True) -> None:
        """Start the thread, also after a stop; a manager that runs goes on.

        Args:
            warmup: Whether decode steps are recorded before the first request, where they are
                recorded; otherwise as they come up.

        Raises:
            EngineClosedError: It is still stopping; :meth:`join` it first. Or it was destroyed.
            Exception: What making the engine raised.
        """
        with self._lock:
            self._require_undestroyed()
            if self.is_running():
                assert self._thread is not None
                if not self._thread.is_alive:
                    raise EngineClosedError("the manager is still stopping; `join` it first")
                _log.warning("the manager runs already")
                return
            if self._thread is not None and self._thread.death is not None:
                self.frontend.close_engine()
            load, within = partial(self.frontend.load, records=warmup), computing_threads
            thread = DecodeThread(load, name=_THREAD, within=partial(within, None))
            thread.start()
            thread.wait_ready_in_thread()
            self.frontend.keeps_engine, self.warmed_up = False, self.warmed_up or warmup
            thread.call_when_finished(self.frontend.finish)
            self._thread = thread
            early, self._early = self._early, []
            for request in early:
                thread.post(request)

    def is_running(self) -> bool:
        """Return whether the thread runs, also while it is stopping."""
        thread = self._thread
        return thread is not None and (thread.is_current or not thread.join(0))

    def stop(
        self,
        block: bool = True,
        timeout: float | None = None,
        keep_for_next_session: bool = False,
        hard_stop: bool = False,
    ) -> None:
        """Take no more requests, serve those that were added, and end the thread. Idempotent.

        Args:
            block: Whether to wait for the thread to end.
            timeout: Most seconds to wait; ``None`` for no limit. At the timeout the thread still
                runs, and a line in the log says so.
            keep_for_next_session: Whether to keep the engine with its memory, and this manager as
                the one that the model's ``init_continuous_batching`` returns next.
            hard_stop: Whether to cut requests off instead; they fail within one step, with what
                was generated so far.

        Raises:
            RuntimeError: The caller would wait for ever, as it holds a :meth:`pause`.
        """
        thread = self._thread
        if thread is None:
            if keep_for_next_session:
                _log.warning("the manager was never started, so it is not kept")
            else:
                self.frontend.close_engine()
                self.keep(False)
            return
        if block and thread.is_paused_here:
            raise RuntimeError("`stop` waits for the thread, which waits for this `pause` to end")
        self.frontend.keeps_engine = keep_for_next_session
        thread.stop(drain=not hard_stop)
        if thread.is_over and not keep_for_next_session:
            self.frontend.close_engine()
        self.keep(keep_for_next_session)
        if block and not thread.is_current:
            self.join(timeout=timeout)

    def keep(self, keep: bool) -> None:
        """Make this the manager that the model returns next, or not any more."""
        if keep:
            setattr(self.model, KEPT, self)
        elif getattr(self.model, KEPT, None) is self:
            delattr(self.model, KEPT)

    def join(
        self,
        *times: float | None,
        stop_trigger_time: float | None = None,
        timeout: float | None = None,
    ) -> None:
        """Wait for the thread to end, without asking it to.

        Args:
            *times: ``timeout``, or ``stop_trigger_time`` and ``timeout``.
            stop_trigger_time: Time of the stop, in seconds of ``time.perf_counter``, for the log.
            timeout: Most seconds to wait; ``None`` for no limit.
        """
        if len(times) > 2:
            raise TypeError("join() takes `stop_trigger_time` and `timeout`")
        if len(times) == 1 and timeout is None:
            timeout = times[0]
        elif times:
            stop_trigger_time, timeout = (*times, timeout)[:2]
        thread = self._thread
        if thread is None:
            return
        if not thread.join(timeout):
            _log.warning("the manager's thread still runs after %s s", timeout)
        elif stop_trigger_time is not None:
            _log.info("the thread ended after %.2f s", time.perf_counter() - stop_trigger_time)

    def destroy(self) -> None:
        """Stop, free the memory, and never start again. Idempotent; results can still be read."""
        if self.is_running():
            self.stop()
        self.is_destroyed = True
        self.frontend.close_engine()
        self.keep(False)

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Hold the thread between two steps while the block runs, so that weights may be changed.

        Requests keep their memory and go on behind the block. Those that run keep the keys and
        values of the old weights; those that have not begun share no pages with earlier ones.
        Several threads may hold a pause at the same time.

        Raises:
            EngineClosedError: The manager does not run, or its thread ends before it can pause.
            EngineDiedError: The thread dies before it can pause.
            RuntimeError: Code that runs on the decode thread calls this.
        """
        thread = self._thread
        if thread is None or not self.is_running():
            raise EngineClosedError("the manager does not run, so there is nothing to pause")
        with thread.paused():
            engine = thread.loaded
            assert engine is not None
            with weights_open(engine):
                yield

    def _require_undestroyed(self) -> None:
        if self.is_destroyed:
            raise EngineClosedError("the manager was destroyed; make a new one")

    def _is_serving(self) -> bool:
        """Return whether results may still come."""
        thread = self._thread
        return thread is not None and not thread.is_over
