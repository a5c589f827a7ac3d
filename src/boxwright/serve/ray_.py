"""The server on the machines of a Ray cluster: a Ray Serve deployment with one replica per machine.

A replica is the app with its worker processes, on all cores of its machine. Ray's proxies pass each request to a
replica with few of them, and Ray starts more replicas while requests wait.
"""

import logging
import signal
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from queue import SimpleQueue
from types import FrameType
from typing import Any

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.config import HTTPOptions, ProxyLocation
from ray.serve.exceptions import RayServeException
from ray.serve.schema import LoggingConfig

from boxwright.core import catalogue
from boxwright.core.environment import token
from boxwright.core.errors import UsageError, WorkerError
from boxwright.core.log import get_logger
from boxwright.devices.detect import GPU
from boxwright.launchers.network import find_free_port
from boxwright.serve.app import App
from boxwright.serve.config import ServeConfig
from boxwright.serve.plan import plan_workers
from boxwright.serve.replies import Receive, Scope, Send
from boxwright.serve.run import name_models

_log = get_logger(__name__)
_NAME = "boxwright"
_TARGET = 1.25  # requests per core that a replica should have: each core computes one, and few wait
_MOST = 100  # requests per core that may be on their way; the app refuses what would wait too long
_UPSCALE_S, _DOWNSCALE_S = 5.0, 300.0
_LOOK_BACK_S = 15.0  # Ray counts requests every 10 s


@dataclass(frozen=True, slots=True, kw_only=True)
class RayOptions:
    """How a server uses a cluster.

    Attributes:
        address: the cluster, as `ray.init` takes it; None for the one in RAY_ADDRESS, else a new one on this machine.
        replicas: the fewest and the most machines; None for one to all that there are.
    """

    address: str | None = None
    replicas: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.replicas is not None and not 1 <= self.replicas[0] <= self.replicas[1]:
            raise UsageError(
                f"replicas={self.replicas!r} must be the fewest and the most machines, such as 1:8, at least 1."
            )


def serve_on_ray(config: ServeConfig, options: RayOptions, *, ready: Callable[[str], None] | None = None) -> None:
    """Serve models on a Ray cluster until SIGTERM or Ctrl-C; SIGHUP loads the models of all replicas again.

    Args:
        config: the settings; paths must name the same files on all machines.
        options: the cluster.
        ready: called with the server's address when the first replicas answer.

    Raises:
        UsageError: a setting is wrong, or Ray has no room.
        WorkerError: no replica could be started; the message has its error.
    """
    for path in config.models.values():
        plan_workers(path, config)  # an error that does not need a cluster to be found
    config = replace(config, port=config.port or find_free_port())
    logging.getLogger("ray.serve").setLevel(logging.WARNING)
    with catalogue.load("engine", "ray")(options.address):
        try:
            handle = _deploy(config, options)
            with _Signals() as signals:
                if ready is not None:
                    ready(f"http://{config.host}:{config.port}")
                while signals.wait() == signal.SIGHUP:
                    done = handle.broadcast("reload").results()
                    _log.info("%d replicas have loaded their models again", len(done))
        finally:
            with suppress(RayError, RayServeException):  # it may not have started
                serve.delete(_NAME)
                if not serve.status().applications:  # others may share the cluster
                    serve.shutdown()


def build(args: Mapping[str, Any]) -> Any:
    """Return the application for `serve run` and KubeRay's RayService: `import_path: boxwright.serve.ray_:build`.

    Args:
        args: `models` (a path, a list of them, or paths by name), `cpus` (of each machine), `replicas` (a list of the
            fewest and the most), and the settings of `ServeConfig`. The token is taken from BOXWRIGHT_TOKEN.
    """
    settings = dict(args)
    cpus, replicas = int(settings.pop("cpus", 1)), tuple(settings.pop("replicas", (1, 1)))
    models = name_models(settings.pop("models", []))
    config = ServeConfig(**{"host": "0.0.0.0", "token": token(), **settings, "models": models})
    return _bind(config, cpus, RayOptions(replicas=replicas))


def _deploy(config: ServeConfig, options: RayOptions) -> Any:
    """Start the replicas and return Ray's handle of them."""
    kind = "GPU" if config.device == GPU else "CPU"
    machines = [node["Resources"] for node in ray.nodes() if node["Alive"] and node["Resources"].get(kind, 0) >= 1]
    if not machines:
        raise UsageError(f"The Ray cluster has no machine with a {kind}. Add one, or choose another --device.")
    cpus = int(min(machine.get("CPU", 0) for machine in machines))
    options = replace(options, replicas=options.replicas or (1, len(machines)))
    try:
        serve.start(
            proxy_location=ProxyLocation.HeadOnly if config.is_local else ProxyLocation.EveryNode,
            http_options=HTTPOptions(
                host=config.host,
                port=config.port,
                request_timeout_s=config.timeout_s + 5,  # the app's own sentence comes first
            ),
            logging_config=LoggingConfig(log_level="WARNING", enable_access_log=False),
        )
        return serve.run(_bind(config, cpus, options), name=_NAME, route_prefix="/")
    except (RuntimeError, RayError) as error:
        raise WorkerError(f"Ray could not start the server: {_last_line(str(error))}") from error


def _bind(config: ServeConfig, cpus: int, options: RayOptions) -> Any:
    fewest, most = options.replicas or (1, 1)
    on_gpu = config.device == GPU
    # Ray hides GPUs from replicas that have not asked for one.
    config = config if on_gpu else replace(config, device="cpu")

    def build_app() -> _Unstarted:
        return _Unstarted(App(config, replica=serve.get_replica_context().replica_id.unique_id))

    deployment = serve.deployment(
        serve.ingress(build_app)(_Replica),
        name=_NAME,
        ray_actor_options={"num_cpus": cpus, "num_gpus": 1 if on_gpu else 0},
        max_replicas_per_node=1,
        user_config=1,  # any other number, in a RayService, lets all replicas load their models again
        autoscaling_config={
            "min_replicas": fewest,
            "max_replicas": most,
            "target_ongoing_requests": _TARGET * max(cpus, 1),
            "look_back_period_s": _LOOK_BACK_S,
            "upscale_delay_s": _UPSCALE_S,
            "downscale_delay_s": _DOWNSCALE_S,
        },
        max_ongoing_requests=_MOST * max(cpus, 1),
        max_queued_requests=_MOST * max(cpus, 1),
        graceful_shutdown_timeout_s=config.timeout_s + 5,
    )
    return deployment.bind()


class _Replica:
    """What Ray asks of a replica; `app` is set by Ray."""

    app: "_Unstarted"

    async def reconfigure(self, _number: int) -> None:
        """Start, or load the models again."""
        if self.app.is_started:
            await self.reload()
        else:
            await self.app.app.start()
            self.app.is_started = True

    async def reload(self) -> None:
        """Load the models again; one that can't be loaded stays as it is, with a line in the replica's log."""
        await self.app.app.models.reload()

    async def check_health(self) -> None:
        """Fail if no worker answers; Ray replaces a replica that fails three times in a row, 10 s apart."""
        if not self.app.app.models.ready:
            raise WorkerError("A model of this replica has no worker that answers.")


class _Unstarted:
    """The app without its start, which `reconfigure` waits for: from there, the error reaches the caller."""

    def __init__(self, app: App) -> None:
        self.app = app
        self.is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "lifespan":
            await self.app(scope, receive, send)
            return
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.app.close()
        await send({"type": "lifespan.shutdown.complete"})


class _Signals:
    """Keeps SIGTERM, SIGINT and SIGHUP until they are waited for."""

    def __init__(self) -> None:
        self._came: SimpleQueue[int] = SimpleQueue()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "_Signals":
        with suppress(ValueError):  # not in the main thread: it serves until the program ends
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
                self._before[number] = signal.signal(number, self._take)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def wait(self) -> int:
        """Return the next signal."""
        return self._came.get()

    def _take(self, number: int, _frame: FrameType | None) -> None:
        self._came.put(number)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "its log says why"
