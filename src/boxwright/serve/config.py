"""The settings of a server."""

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from boxwright.core.errors import UsageError, check_choice
from boxwright.devices.detect import GPU
from boxwright.tasks.models import ModelOptions

ServeHint = Literal["auto", "latency", "throughput"]
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeConfig:
    """How models are served.

    Attributes:
        models: the file or folder of each model by the name that requests use; the first one is the default.
        host: the address to listen on.
        port: the port; 0 chooses a free one.
        device: auto, cpu or cuda.
        hint: the fastest answer to one request, the most answers per second, or both ("auto").
        workers: pictures computed in parallel; None leaves it to the hint.
        batch: the most pictures that a GPU computes at once.
        batch_wait_ms: how long the first picture of a batch may wait for others.
        max_body: bytes of a request.
        max_pixels: pixels of a picture.
        max_images: pictures of one request.
        max_wait_ms: how long a request may wait for a free worker; more requests get 429.
        timeout_s: seconds for a request, from its first byte to its answer.
        token: what requests must carry as a bearer token; None for no authentication.
        no_auth: allow addresses other than the loopback without a token.
        allow_host: names that the Host header may have beside addresses and localhost; "*" for any.
        access_log: the file that gets a JSON line for each request; "-" for stderr.
        options: what the models' files do not say.
        trust: load models with code that was made elsewhere too.
    """

    models: Mapping[str, Path]
    host: str = "127.0.0.1"
    port: int = 8000
    device: str = "auto"
    hint: ServeHint = "auto"
    workers: int | None = None
    batch: int = 16
    batch_wait_ms: float = 2.0
    max_body: int = 16 << 20
    max_pixels: int = 25_000_000
    max_images: int = 64
    max_wait_ms: float = 1000.0
    timeout_s: float = 30.0
    token: str | None = field(default=None, repr=False)
    no_auth: bool = False
    allow_host: tuple[str, ...] = ()
    access_log: str | None = None
    options: ModelOptions = field(default_factory=ModelOptions)
    trust: bool = False

    def __post_init__(self) -> None:
        if not self.models:
            raise UsageError(
                "There is no model to serve. Name one: boxwright serve best, or boxwright serve yolox_nano."
            )
        for name in self.models:
            if not _NAME.fullmatch(name):
                raise UsageError(
                    f"{name!r} can't be a model's name in a URL. Give another one with NAME=PATH: letters, digits, "
                    "'.', '_' and '-'."
                )
        check_choice("hint", self.hint, get_args(ServeHint))
        check_choice("device", self.device, ("auto", "cpu", GPU))
        if self.workers is not None and self.hint != "auto":
            raise UsageError(f"hint={self.hint!r} chooses the workers itself. Leave one of them out.")
        for setting in ("max_body", "max_pixels", "max_images", "max_wait_ms", "timeout_s", "batch"):
            if getattr(self, setting) <= 0:
                raise UsageError(f"{setting}={getattr(self, setting)!r} must be above 0.")
        if self.token is not None and (
            len(self.token) < 16 or not self.token.isascii() or not self.token.isprintable()
        ):
            raise UsageError("A token must have at least 16 printable ASCII characters, such as: openssl rand -hex 24")
        if not self.is_local and self.token is None and not self.no_auth:
            raise UsageError(
                f"host={self.host!r} can be reached by other machines. Set a token (--token or BOXWRIGHT_TOKEN), or "
                "say --no-auth if something else protects the server."
            )

    @property
    def is_local(self) -> bool:
        """Whether only this machine can reach the server."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
