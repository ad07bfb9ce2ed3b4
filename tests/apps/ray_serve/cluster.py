"""A private cluster, an application on it, and ways to harm its processes."""

from __future__ import annotations

import os
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import random


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Cluster:
    """Two engines of the demo model behind two ingresses.

    Attributes:
        url: Where the ingress is.
    """

    def __init__(self, **settings: Any) -> None:
        import ray
        from ray import serve

        port = free_port()
        self.url = f"http://127.0.0.1:{port}"
        ray.init(address="local", num_cpus=8, include_dashboard=False, log_to_driver=False)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        self.deploy(**settings)

    def deploy(self, **settings: Any) -> None:
        """Put an application in the place of the one that is there."""
        from ray import serve

        from asyncgen_apps.ray_serve import build_app

        shape = {"replicas": 2, "ingresses": 2, "drain_seconds": 2.0, "resume_secret": "s" * 16}
        serve.run(build_app({**shape, "engine": {"num_threads": 1}, **settings}))

    def close(self) -> None:
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()

    def processes(self, deployment: str) -> list[int]:
        """Numbers of the processes of a deployment."""
        found = []
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    line = (folder / "cmdline").read_bytes()
                except OSError:
                    continue
                if line.startswith(f"ray::ServeReplica:default:{deployment}".encode()):
                    found.append(int(folder.name))
        return found

    def kill(self, deployment: str, chooser: random.Random) -> int:
        """End one of its processes without a word."""
        victim = chooser.choice(self.processes(deployment))
        os.kill(victim, signal.SIGKILL)
        return victim

    def wait_processes(self, deployment: str, count: int, seconds: float = 60.0) -> None:
        """Return when so many processes of a deployment are there."""
        end = time.monotonic() + seconds
        while len(self.processes(deployment)) < count:
            assert time.monotonic() < end, deployment
            time.sleep(0.05)

    def replicas(self, deployment: str) -> int:
        """Count the running replicas."""
        from ray import serve

        told = serve.status().applications["default"].deployments[deployment]
        return int(told.replica_states.get("RUNNING", 0))

    def wait(self, deployment: str, count: int, seconds: float = 60.0) -> None:
        """Return when so many replicas are running."""
        from ray import serve

        end = time.monotonic() + seconds
        while time.monotonic() < end:
            told = serve.status().applications["default"].deployments[deployment]
            if told.replica_states.get("RUNNING", 0) >= count and len(told.replica_states) == 1:
                return
            time.sleep(0.1)
        raise AssertionError(f"{deployment}: {told.replica_states}")
