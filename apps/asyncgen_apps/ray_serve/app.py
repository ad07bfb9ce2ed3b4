"""Build the Ray Serve application from its deployments: ingress, replicas, metrics board."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from asyncgen_apps.ray_serve.ingress import Ingress
from asyncgen_apps.ray_serve.metrics_board import MetricsBoard
from asyncgen_apps.ray_serve.replica import Replica
from asyncgen_apps.ray_serve.settings import (
    MESSAGE_ENV,
    RaySettings,
    read_settings,
    with_secret,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ray.serve import Application

ROUTER = "asyncgen_apps.ray_serve.router:BeginningRouter"
SCALING = "asyncgen_apps.ray_serve.autoscaling:EngineScaling"

SHARED_LOOP_ENV = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
"""Default environment of engines and ingresses: streams run in the event loop that receives the
messages. A separate loop would pass each message between two threads. Prompts are prepared and
tokens computed in other threads, so nothing blocks this loop."""

LOOK_BACK = 3.0
"""Seconds over which autoscaling takes the mean of its metrics."""


def build_app(settings: RaySettings | Mapping[str, Any] | None = None) -> Application:
    """Build the application.

    ``serve run asyncgen_apps.ray_serve:build_app model=demo replicas=2`` calls it with a mapping,
    and so does the ``args`` of a file of Serve or KubeRay.

    Args:
        settings: The settings, or their fields by name.

    Returns:
        The application, for ``serve.run``.

    Raises:
        ValueError: A name is unknown, or a value is not allowed.
    """
    known = settings if isinstance(settings, RaySettings) else read_settings(settings or {})
    known = with_secret(known, os.environ)
    defaults = {**SHARED_LOOP_ENV, **MESSAGE_ENV}
    variables = {name: os.environ.get(name, value) for name, value in defaults.items()}
    environment = {"env_vars": variables}
    scaling: dict[str, Any] = {"num_replicas": known.replicas}
    if known.max_replicas is not None:
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=known.replicas,
                max_replicas=known.max_replicas,
                target_ongoing_requests=known.target_requests,
                upscale_delay_s=known.upscale_seconds,
                downscale_delay_s=known.downscale_seconds,
                metrics_interval_s=1.0,
                look_back_period_s=LOOK_BACK,
                policy=AutoscalingPolicy(
                    policy_function=SCALING,
                    policy_kwargs={
                        "target_requests": known.target_requests,
                        "target_pages": known.target_pages,
                    },
                ),
            )
        }
    stopping = {
        "graceful_shutdown_timeout_s": known.drain_seconds,
        "graceful_shutdown_wait_loop_s": 0.2,
    }
    board = serve.deployment(
        MetricsBoard, name="board", max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0}
    ).bind()
    replicas = serve.deployment(
        Replica,
        name="engine",
        **scaling,
        **stopping,
        ray_actor_options={
            "num_cpus": known.num_cpus,
            "num_gpus": known.num_gpus,
            "runtime_env": environment,
        },
        max_ongoing_requests=known.max_requests,
        max_queued_requests=known.max_waiting,
        health_check_period_s=2.0,
        request_router_config=RequestRouterConfig(
            request_router_class=ROUTER, initial_backoff_s=0.02, max_backoff_s=0.5
        ),
    ).bind(known.model, dict(known.engine), board)
    return serve.deployment(
        serve.ingress()(Ingress),
        name="ingress",
        num_replicas=known.ingresses,
        ray_actor_options={"num_cpus": 0, "runtime_env": environment},
        max_ongoing_requests=100_000,
        **stopping,
    ).bind(known, replicas, board)
