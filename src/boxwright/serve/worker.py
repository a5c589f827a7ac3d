"""A worker process of the server: `python -m boxwright.serve.worker START`, with START as JSON."""

import json
import os
import signal
import socket
import sys
from typing import Any

from boxwright.launchers.allocator import keep_freed_memory

_KEPT = 16 << 20  # bytes of a buffer: a picture of five megapixels
_NICE = 3  # the server process, which keeps the workers busy, comes first


def main(start: str) -> None:
    """Pin to the cores, load the model, and answer requests until the server closes the connection."""
    values = json.loads(start)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # they reach the whole group; the server decides
    if values["cpus"]:
        # Before anything that reads the mask only once is imported: numpy, OpenMP, TBB.
        os.sched_setaffinity(0, values["cpus"])
    # Its threads take turns: by default each gives back the memory of its picture, at 900 page faults per request.
    keep_freed_memory(_KEPT)
    os.nice(_NICE)
    serve(values, socket.socket(fileno=values["connection"]))
    sys.stderr.flush()
    os._exit(0)  # a runtime's threads may take long to end, and nothing is left to save


def serve(values: dict[str, Any], connection: socket.socket) -> None:
    """Load the model and answer requests until the server closes the connection."""
    import threading
    import time
    from contextlib import suppress

    from boxwright.core import log
    from boxwright.serve.answer import warm_up
    from boxwright.serve.loading import limit_memory, open_answerer
    from boxwright.serve.wire import Channel

    log.configure("quiet")
    channel = Channel(connection)
    try:
        answerer, facts = open_answerer(values)
        facts["service_s"] = warm_up(answerer)
        limit_memory(values["spare_bytes"])
    except Exception as error:  # noqa: BLE001 a process border: the server reports every error
        with suppress(OSError):
            channel.send({"error": str(error), "kind": type(error).__name__})
        return
    channel.send({"ready": facts})

    def answer_all() -> None:
        # Every thread receives for itself: a request passes from the server to the thread that computes it.
        while (message := channel.receive()) is not None:
            head, body = message
            started = time.monotonic()
            answer = answerer(head, body)
            reply = {
                "id": head["id"],
                "status": answer.status,
                "kind": answer.kind,
                "timings_ms": answer.timings_ms,
                "service_s": time.monotonic() - started,
            }
            if answer.extra:
                reply["extra"] = answer.extra
            with suppress(OSError):  # the server has ended
                channel.send(reply, answer.body)
            if answer.broken:
                os._exit(75)

    threads = [threading.Thread(target=answer_all, daemon=True) for _ in range(values["streams"] - 1)]
    for thread in threads:
        thread.start()
    answer_all()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(sys.argv[1])
