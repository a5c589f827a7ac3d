"""The worker process of `instances`: `python -m boxwright.runtimes.instance_worker START`, with START as JSON."""

import json
import os
import signal
import sys
from typing import Any


def main(start: str) -> None:
    """Pin to the cores, load the artifact, and answer requests until the parent closes the pipe."""
    values = json.loads(start)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    # Before anything that reads the mask only once is imported: numpy, OpenMP, TBB.
    os.sched_setaffinity(0, values["cpus"])
    serve(values)


def serve(values: dict[str, Any]) -> None:
    """Load the artifact and answer requests until the parent closes the pipe."""
    import threading
    import traceback
    from concurrent.futures import ThreadPoolExecutor
    from contextlib import suppress
    from multiprocessing.connection import Connection
    from pathlib import Path

    from boxwright.runtimes.artifact import open_graph, read_artifact
    from boxwright.runtimes.base import Tuning
    from boxwright.runtimes.slab import Slab

    pipe: Connection[Any, Any] = Connection(values["pipe"])
    slots = [(Slab(taken), Slab(given)) for taken, given in values["slots"]]
    sending = threading.Lock()
    tuning = Tuning(**values["tuning"])
    try:
        # The parent has compared the files with their hashes, and made sure that they may run.
        graph = open_graph(read_artifact(Path(values["folder"]), verify=False), tuning, trust=True)
    except Exception as error:  # noqa: BLE001 a process border: the parent reports every error
        pipe.send(("error", None, str(error), traceback.format_exc()))
        return
    pipe.send(("ready",))

    def answer(slot: int, header: Any) -> None:
        taken, given = slots[slot]
        try:
            reply: tuple[Any, ...] = ("done", slot, given.write(graph.run(taken.read(header))))
        except Exception as error:  # noqa: BLE001 as above
            reply = ("error", slot, str(error), traceback.format_exc())
        with sending, suppress(OSError):  # the parent may have exited
            pipe.send(reply)

    streams = tuning.streams or 1
    with ThreadPoolExecutor(streams) as pool:
        while True:
            try:
                slot, header = pipe.recv()
            except (EOFError, OSError):
                break  # closed, or the parent has died
            if streams > 1:
                pool.submit(answer, slot, header)
            else:
                answer(slot, header)
    graph.close()


if __name__ == "__main__":
    main(sys.argv[1])
