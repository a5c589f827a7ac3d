"""The active Spark session, or a temporary one that leaves nothing behind."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from boxwright.core.errors import UsageError
from boxwright.launchers.interrupts import keep_handler
from boxwright.launchers.network import check_reachable

FAILURES = (Py4JError, PySparkException, OSError)
"""What Spark raises."""

LOOPBACK = "127.0.0.1"
_LEAVE_S = 10.0
_PORTS = {"http": 80, "https": 443}


@contextmanager
def open_spark(
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    *,
    suggested: Mapping[str, str] | None = None,
) -> Iterator[SparkContext]:
    """Yield the active session's context, or that of a new session, which ends with this block.

    Nothing of a new session is left afterwards, the Java process included.

    Args:
        master: Spark's master URL; None for the active session's, else for all cores of this machine.
        settings: Spark's settings that must hold.
        suggested: settings for a new session, which the active one need not have.

    Raises:
        UsageError: the active session has another master or other settings, or Spark does not start.
    """
    active = SparkContext._active_spark_context
    if active is not None:
        _check_same(active, master, settings or {})
        yield active
        return
    chosen = {**(suggested or {}), **(settings or {})}
    master = master or chosen.get("spark.master", "local[*]")
    _check_master(master)
    local = _LOOPBACK_ONLY if master.startswith("local") else {}
    had_gateway = SparkContext._gateway is not None
    try:
        session = _start(master, _DEFAULTS | local | chosen | {"spark.master": master})
        try:
            yield session.sparkContext
        finally:
            session.stop()
    finally:
        if not had_gateway:
            _end_gateway()


# A local Spark stays on this machine, whatever its name resolves to.
_LOOPBACK_ONLY = {"spark.driver.host": LOOPBACK, "spark.driver.bindAddress": LOOPBACK}
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.dynamicAllocation.enabled": "false",  # it rules out barrier stages
    "spark.locality.wait": "0",
    # Spark checks for ten minutes by default whether a barrier stage fits; the launcher checks that itself.
    "spark.scheduler.barrier.maxConcurrentTasksCheck.interval": "1s",
    "spark.scheduler.barrier.maxConcurrentTasksCheck.maxFailures": "10",
}


def _start(master: str, settings: Mapping[str, str]) -> SparkSession:
    with _undisturbed(master):
        builder = SparkSession.builder.appName("boxwright")
        for name, value in settings.items():
            builder = builder.config(name, value)
        try:
            return builder.getOrCreate()
        except FAILURES as error:
            raise UsageError(
                f"Spark does not start with master={master!r}: {_reason(error)}. Its own log says more."
            ) from error


def _reason(error: Exception) -> str:
    """Return the innermost cause in a Java trace, else the first line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    causes = [line.partition("Caused by: ")[2] for line in lines if "Caused by: " in line]
    named = [line.strip() for line in lines if re.match(r"\s*:? ?(java|org)\.[\w.$]+(Exception|Error)", line)]
    return (causes[-1:] or named[:1] or lines[:1])[0].removeprefix(": ").rstrip(".")


def _check_same(active: SparkContext, master: str | None, settings: Mapping[str, str]) -> None:
    """Reject a master or settings that the active session does not have."""
    if master not in (None, active.master):
        raise UsageError(
            f"master={master!r}, but a session with {active.master!r} is active. "
            "Leave the master out, or stop that session first."
        )
    conf = active.getConf()
    for name, value in settings.items():
        if conf.get(name) != value:
            raise UsageError(
                f"{name}={value!r}, but the active session was started with {conf.get(name)!r}. "
                "Leave it out, or stop that session first."
            )


def _check_master(master: str) -> None:
    """Reject a malformed or unreachable master URL; Spark would retry for minutes, then print a Java trace."""
    if not re.match(r"local(\[.+\])?$|local-cluster\[|spark://.|yarn$|k8s://.", master):
        raise UsageError(
            f"master={master!r} is not a master URL. Use 'local[4]', 'spark://host:7077', 'yarn' or 'k8s://host:443'."
        )
    if master.startswith("spark://"):
        check_reachable("master", master, master.removeprefix("spark://").split(","), port=7077)
    elif master.startswith("k8s://"):
        scheme, _, place = master.removeprefix("k8s://").rpartition("://")
        check_reachable("master", master, [place.partition("/")[0]], port=_PORTS[scheme or "https"])


@contextmanager
def _undisturbed(master: str) -> Iterator[None]:
    """Start Spark with this Python for its tasks, and restore the program's Ctrl-C handler."""
    # Executors elsewhere may have their Python in another place: there Spark's own setting counts.
    ours = "PYSPARK_PYTHON" not in os.environ and master.startswith(("local", "spark:"))
    if ours:
        os.environ["PYSPARK_PYTHON"] = sys.executable
    try:
        with keep_handler(signal.SIGINT):
            yield
    finally:
        if ours:
            del os.environ["PYSPARK_PYTHON"]


def _end_gateway() -> None:
    """End the Java process, which PySpark would keep until the program ends."""
    gateway = SparkContext._gateway
    SparkContext._gateway = SparkContext._jvm = None
    if gateway is None:
        return
    process: subprocess.Popen[bytes] | None = getattr(gateway, "proc", None)
    gateway.shutdown()
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()  # tells it to exit
    try:
        process.wait(_LEAVE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
