"""The far end of `instances`: `python -m boxwright.runtimes.instance_worker START`, with START as JSON."""

import json
import os
import signal
import sys
from typing import Any


def main(start: str) -> None:
    """Take the cores, load the artifact, answer requests until the other end is closed."""
    values = json.loads(start)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the other end decides
    # Before anything that reads the mask only once is imported: numpy, OpenMP, TBB.
    os.sched_setaffinity(0, values["cpus"])
    _serve(values)


def _serve(values: dict[str, Any]) -> None:
    import traceback
    from multiprocessing.connection import Connection
    from pathlib import Path

    from boxwright.runtimes.artifact import open_graph
    from boxwright.runtimes.base import Tuning
    from boxwright.runtimes.slab import Slab

    pipe: Connection[Any, Any] = Connection(values["pipe"])
    slots = [(Slab(taken), Slab(given)) for taken, given in values["slots"]]
    try:
        graph = open_graph(Path(values["folder"]), Tuning(**values["tuning"]))
    except Exception as error:  # noqa: BLE001 a border: the other process must hear of whatever it was
        pipe.send(("error", str(error), traceback.format_exc()))
        return
    pipe.send(("ready",))
    while True:
        try:
            slot, header = pipe.recv()
        except EOFError:
            break  # closed, or the other process has died
        taken, given = slots[slot]
        try:
            answer: tuple[Any, ...] = ("done", given.write(graph.run(taken.read(header))))
        except Exception as error:  # noqa: BLE001 as above
            answer = ("error", str(error), traceback.format_exc())
        pipe.send(answer)
    graph.close()


if __name__ == "__main__":
    main(sys.argv[1])
