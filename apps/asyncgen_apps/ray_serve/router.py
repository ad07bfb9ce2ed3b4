"""Has Ray Serve send what begins alike to the same replica; which one, `ranking` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.serve.request_router import FIFOMixin, RequestRouter

from asyncgen_apps.ray_serve.ranking import ranked

if TYPE_CHECKING:
    from ray.serve.request_router import PendingRequest, RunningReplica


class BeginningRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends what begins alike to the same replica."""

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are asked to take the request."""
        session = ""
        if pending_request is not None:
            # Without it, the router asks again and again without a pause.
            pending_request.routing_context.should_backoff = True
            given: list[Any] = list(pending_request.args)
            session = getattr(given[0], "session", "") if given else ""
        known = {each.replica_id.unique_id: each for each in candidate_replicas}
        cache = self.replica_queue_len_cache
        loads = {name: cache.get(each.replica_id) or 0 for name, each in known.items()}
        return [[known[name]] for name in ranked(session, loads)]
