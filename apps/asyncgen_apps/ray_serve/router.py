"""Route requests of Ray Serve to the replica that `ranking` chooses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.serve.request_router import FIFOMixin, RequestRouter

from asyncgen_apps.ray_serve.ranking import RequestPlacer, fills_a_page

if TYPE_CHECKING:
    from ray.serve._private.common import ReplicaID
    from ray.serve.request_router import PendingRequest, RunningReplica


class BeginningRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends a request to the least loaded replica, or to one with its prefix cached."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Begin without placed requests; Serve passes the arguments."""
        super().__init__(*args, **kwargs)
        self._placer = RequestPlacer()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """Return the replicas in the order in which they are asked to take the request."""
        session, is_long = "", False
        if pending_request is not None:
            # Without this, the router retries without a pause.
            pending_request.routing_context.should_backoff = True
            given: list[Any] = list(pending_request.args)
            session = getattr(given[0], "session", "") if given else ""
            is_long = bool(session) and fills_a_page(given[0].prompt)
        known = {each.replica_id.unique_id: each for each in candidate_replicas}
        cache = self.replica_queue_len_cache
        # An entry expires after some seconds; a replica without one need not be idle.
        unknown = [each for each in candidate_replicas if cache.get(each.replica_id) is None]
        if unknown:
            await self._probe_queue_lens(unknown, 0)
        loads = {name: cache.get(each.replica_id) for name, each in known.items()}
        request = id(pending_request)
        names = self._placer.place(request, session, loads, is_long=is_long)
        return [[known[name]] for name in names]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """Note that Serve's cache counts the request from now on."""
        super().on_send_request(replica_id)
        self._placer.sent(replica_id.unique_id)
