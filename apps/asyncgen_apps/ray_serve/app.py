"""Puts the deployments together: ingress, replicas, board."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ray import serve
from ray.serve.config import AutoscalingConfig, AutoscalingPolicy, RequestRouterConfig

from asyncgen_apps.ray_serve.ingress import Ingress
from asyncgen_apps.ray_serve.metrics_board import Board
from asyncgen_apps.ray_serve.replica import Replica
from asyncgen_apps.ray_serve.settings import (
    MESSAGES,
    RaySettings,
    read_settings,
    with_secret,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ray.serve import Application

ROUTER = "asyncgen_apps.ray_serve.router:BeginningRouter"
SCALING = "asyncgen_apps.ray_serve.autoscaling:EngineScaling"

ONE_LOOP = {
    "RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD": "0",
    "RAY_SERVE_RUN_ROUTER_IN_SEPARATE_LOOP": "0",
}
"""Environment of engines and ingresses, unless it was set otherwise: their streams run in the loop
that the messages come to. A loop of their own would have each message cross two threads. Nothing of
ours holds that loop up: prompts are made ready, and tokens computed, in threads of their own."""

LOOK_BACK = 3.0
"""Seconds over which the figures that decide how many replicas there are have their mean."""


def build_app(settings: RaySettings | Mapping[str, Any] | None = None) -> Application:
    """Make the application.

    ``serve run asyncgen_apps.ray_serve:build_app model=demo replicas=2`` calls it with a mapping,
    and so does the ``args`` of a file of Serve or KubeRay.

    Args:
        settings: The settings, or their fields by name.

    Returns:
        What ``serve.run`` takes.

    Raises:
        ValueError: A name that is none, or a value that is not allowed.
    """
    known = settings if isinstance(settings, RaySettings) else read_settings(settings or {})
    known = with_secret(known, os.environ)
    wanted = {**ONE_LOOP, **MESSAGES}
    wanted = {name: os.environ.get(name, value) for name, value in wanted.items()}
    environment = {"env_vars": wanted}
    actor = {
        "num_cpus": known.num_cpus,
        "num_gpus": known.num_gpus,
        "runtime_env": environment,
    }
    scaling: dict[str, Any] = {"num_replicas": known.replicas}
    if known.max_replicas is not None:
        targets = {
            "target_requests": known.target_requests,
            "target_pages": known.target_pages,
        }
        scaling = {
            "autoscaling_config": AutoscalingConfig(
                min_replicas=known.replicas,
                max_replicas=known.max_replicas,
                target_ongoing_requests=known.target_requests,
                upscale_delay_s=known.upscale_seconds,
                downscale_delay_s=known.downscale_seconds,
                metrics_interval_s=1.0,
                look_back_period_s=LOOK_BACK,
                policy=AutoscalingPolicy(policy_function=SCALING, policy_kwargs=targets),
            )
        }
    board = serve.deployment(
        Board, name="board", max_ongoing_requests=1024, ray_actor_options={"num_cpus": 0}
    ).bind()
    replicas = serve.deployment(
        Replica,
        name="engine",
        **scaling,
        ray_actor_options=actor,
        max_ongoing_requests=known.max_requests,
        max_queued_requests=known.max_waiting,
        graceful_shutdown_timeout_s=known.drain_seconds,
        graceful_shutdown_wait_loop_s=0.2,
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
        graceful_shutdown_timeout_s=known.drain_seconds,
        graceful_shutdown_wait_loop_s=0.2,
    ).bind(known, replicas, board)
