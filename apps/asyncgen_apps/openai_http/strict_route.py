"""Read the JSON of a request so that no object has a key twice."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from fastapi.routing import APIRoute
from starlette.requests import Request

from asyncgen_apps.openai_http.middleware import repeated_key
from asyncgen_apps.serving.sliced_json import RepeatedKeyError, decoded, unique_keys

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from starlette.responses import Response


class StrictRoute(APIRoute):
    """A route whose body is read by `unique_keys`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of the framework, with another reader of JSON."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            read = _StrictRequest(request.scope, request.receive)
            try:
                return await handle(read)
            except Exception:
                if read.repeated is None:
                    raise
                raise repeated_key(read.repeated) from None

        return strict


class _StrictRequest(Request):
    repeated: RepeatedKeyError | None = None

    async def json(self) -> Any:
        try:
            return json.loads(decoded(await self.body()), object_pairs_hook=unique_keys)
        except RepeatedKeyError as error:
            self.repeated = error
            raise
