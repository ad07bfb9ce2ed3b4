"""Has Ray Serve send a request where `ranking` says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ray.serve.request_router import FIFOMixin, RequestRouter

from asyncgen_apps.ray_serve.ranking import Placing, fills_a_page

if TYPE_CHECKING:
    from ray.serve._private.common import ReplicaID
    from ray.serve.request_router import PendingRequest, RunningReplica


class BeginningRouter(FIFOMixin, RequestRouter):  # type: ignore[misc]
    """Sends a request to the emptiest replica, or to one that knows its beginning."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """As Serve has it."""
        super().__init__(*args, **kwargs)
        self._placing = Placing()

    async def choose_replicas(
        self,
        candidate_replicas: list[RunningReplica],
        pending_request: PendingRequest | None = None,
    ) -> list[list[RunningReplica]]:
        """The replicas in the order in which they are asked to take the request."""
        session, is_long = "", False
        if pending_request is not None:
            # Without it, the router asks again and again without a pause.
            pending_request.routing_context.should_backoff = True
            given: list[Any] = list(pending_request.args)
            session = getattr(given[0], "session", "") if given else ""
            is_long = bool(session) and fills_a_page(given[0].prompt)
        known = {each.replica_id.unique_id: each for each in candidate_replicas}
        cache = self.replica_queue_len_cache
        # After some seconds without news the cache says nothing; that is not "nothing to do".
        silent = [each for each in candidate_replicas if cache.get(each.replica_id) is None]
        if silent:
            await self._probe_queue_lens(silent, 0)
        loads = {name: cache.get(each.replica_id) for name, each in known.items()}
        request = id(pending_request)
        names = self._placing.place(request, session, loads, is_long=is_long)
        return [[known[name]] for name in names]

    def on_send_request(self, replica_id: ReplicaID) -> None:
        """It is in the cache from now on."""
        super().on_send_request(replica_id)
        self._placing.sent(replica_id.unique_id)
