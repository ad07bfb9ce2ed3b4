"""``asyncgen serve-ray``: one model in several processes or on several machines, by Ray Serve."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asyncgen_apps.cli.access import AllowAnonymous, AllowedHost, Host, ModelNames, check_reach
from asyncgen_apps.cli.common_options import (
    Debug,
    Device,
    Dtype,
    KVCacheDtype,
    Model,
    SpecialTokensInContent,
    Threads,
)
from asyncgen_apps.cli.errors import UserError, one_line_errors, require_installed

if TYPE_CHECKING:
    from asyncgen_apps.ray_serve import RaySettings

NEEDED = ("ray", "fastapi", "websockets")

_EXPLICIT = ("COMMANDLINE", "ENVIRONMENT")
"""Sources of options that count more than a file."""


def serve_ray(
    context: typer.Context,
    model: Model = "demo",
    replicas: Annotated[int, typer.Option(min=1, help="Engines, a process each.")] = 2,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="Most engines under load; without it, no scaling.")
    ] = None,
    ingresses: Annotated[int, typer.Option(min=1, help="Processes that hold connections.")] = 1,
    gpus: Annotated[float, typer.Option(min=0, help="GPUs of a replica.")] = 0.0,
    cpus: Annotated[float, typer.Option(min=0, help="CPUs of a replica, as Ray counts.")] = 1.0,
    host: Host = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=1, max=65535, help="Port.")] = 8000,
    ray_address: Annotated[
        str, typer.Option(help="A cluster, or `auto`; `local` starts one that ends with this.")
    ] = "local",
    config: Annotated[
        Path | None, typer.Option(help="JSON or YAML file of settings; options count more.")
    ] = None,
    name: ModelNames = None,
    api_key: Annotated[
        list[str] | None,
        typer.Option(envvar="ASYNCGEN_API_KEY", show_envvar=True, help="Key; repeatable."),
    ] = None,
    allow_anonymous: AllowAnonymous = False,
    allowed_host: AllowedHost = None,
    chat: Annotated[bool, typer.Option("--chat/--no-chat", help="The chat page at /.")] = False,
    drain: Annotated[
        float, typer.Option(min=0, help="Seconds that streams may go on at an engine that stops.")
    ] = 30.0,
    device: Device = None,
    dtype: Dtype = None,
    kv_cache_dtype: KVCacheDtype = None,
    threads: Threads = None,
    special_tokens_in_content: SpecialTokensInContent = None,
    debug: Debug = False,
) -> None:
    """Serve a model from several engines; streams outlive those that are lost.

    Example: asyncgen serve-ray --model demo --replicas 2
    """
    with one_line_errors(debug):
        require_installed(NEEDED, extra="ray")
        from asyncgen_apps.ray_serve import read_settings

        options = {
            "device": device,
            "dtype": dtype,
            "kv_cache_dtype": kv_cache_dtype,
            "num_threads": threads,
            "special_tokens_in_content": special_tokens_in_content,
        }
        engine = {key: value for key, value in options.items() if value is not None}
        values: dict[str, tuple[str, Any]] = {  # by setting: the option and its value
            "model": ("model", model),
            "replicas": ("replicas", replicas),
            "max_replicas": ("max_replicas", max_replicas),
            "ingresses": ("ingresses", ingresses),
            "num_gpus": ("gpus", gpus),
            "num_cpus": ("cpus", cpus),
            "model_names": ("name", tuple(name or ())),
            "api_keys": ("api_key", tuple(api_key or ())),
            "allowed_hosts": ("allowed_host", tuple(allowed_host or ())),
            "with_chat": ("chat", chat),
            "drain_seconds": ("drain", drain),
        }
        file_settings = {} if config is None else _read(config)
        for setting, (option, value) in values.items():
            if setting not in file_settings or _source(context, option) in _EXPLICIT:
                file_settings[setting] = value
        file_settings["engine"] = {**(file_settings.get("engine") or {}), **engine}
        try:
            settings = read_settings(file_settings)
        except (TypeError, ValueError) as error:
            raise UserError(str(error) if config is None else f"{config}: {error}") from None
        check_reach(host, bool(settings.api_keys), allow_anonymous, "--api-key or ASYNCGEN_API_KEY")
        _run(settings, host, port, ray_address)


def _source(context: typer.Context, option: str) -> str:
    """Return the source of an option's value, as click names it."""
    source = context.get_parameter_source(option)
    return "" if source is None else source.name


def _read(config: Path) -> dict[str, Any]:
    import yaml  # installed with Ray

    try:
        text = config.read_text(encoding="utf-8")
        read = json.loads(text) if config.suffix == ".json" else yaml.safe_load(text)
    except OSError as error:
        raise UserError(f"cannot read {config}: {error.strerror}") from None
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(f"{config}: {error}") from None
    if not isinstance(read, dict):
        raise UserError(f"{config}: a mapping of settings is wanted")
    return read


def _run(settings: "RaySettings", host: str, port: int, ray_address: str) -> None:
    """Join or start a cluster, and serve until a signal comes."""
    import os
    import signal

    from asyncgen_apps.ray_serve.settings import CLUSTER_ENV

    # Read where Ray is imported: here, and in the processes that it starts.
    for variable, value in CLUSTER_ENV.items():
        os.environ.setdefault(variable, value)

    import ray
    from ray import serve

    from asyncgen_apps.ray_serve import build_app

    def leave(*_: object) -> None:
        raise KeyboardInterrupt

    ray.init(address=ray_address, namespace="asyncgen", log_to_driver=False)
    try:
        # The ingress must listen on the given address only.
        serve.start(http_options={"host": host, "port": port})
        signal.signal(signal.SIGTERM, leave)
        serve.run(build_app(settings))
        names = ", ".join(settings.model_names) or settings.model
        where = f"http://{host}:{port}"
        typer.echo(
            f"serving {names} at {where}/v1, docs at {where}/docs, {settings.replicas} engines"
        )
        signal.pause()
    except KeyboardInterrupt:
        typer.echo("shutting down", err=True)
    finally:
        if ray_address == "local":
            serve.shutdown()
        else:
            serve.delete("default")
        ray.shutdown()
