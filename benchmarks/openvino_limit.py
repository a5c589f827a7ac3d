"""python benchmarks/openvino_limit.py --artifact FOLDER [--rounds 3] [--seconds 8]

Requests per second of an OpenVINO artifact with one image each, many in parallel: `boxwright benchmark --hint
throughput` against OpenVINO's own `benchmark_app` with its throughput hint on the same file, which sends requests from
C++ and is the limit. The two take turns, and the median of the rounds counts.
"""

import argparse
import json
import re
import subprocess
import sys
from pathlib import Path
from statistics import median

from boxwright.core.timing import hardware_line

_RATE = re.compile(r"Throughput:\s+([0-9.]+) FPS")


def app_rate(artifact: Path, shape: list[int], seconds: int) -> float:
    """Return the requests per second of `benchmark_app`."""
    command = [
        sys.executable, "-c", "from openvino.tools.benchmark.main import main; main()",
        "-m", str(artifact / "model.xml"), "-hint", "throughput", "-data_shape", str(shape).replace(" ", ""),
        "-ip", "f32", "-t", str(seconds),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    found = _RATE.search(done.stdout)
    if found is None:
        raise SystemExit(done.stdout + done.stderr)
    return float(found[1])


def own_rate(artifact: Path, runs: int) -> float:
    """Return the requests per second of `boxwright benchmark`."""
    command = [
        sys.executable, "-m", "boxwright", "benchmark", str(artifact), "--hint", "throughput", "--runs", str(runs),
        "--json", "-q",
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stderr)
    return 1000 / float(json.loads(done.stdout)["rows"][0]["latency_ms"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--artifact", type=Path, required=True, help="a folder of `boxwright export --format openvino`")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=int, default=8, help="of benchmark_app")
    parser.add_argument("--runs", type=int, default=100, help="of `boxwright benchmark`")
    args = parser.parse_args()
    described = json.loads((args.artifact / "artifact.json").read_text())
    shape = [1, *described["signature"]["inputs"][0]["shape"][1:]]
    limits, own = [], []
    for _ in range(args.rounds):
        limits.append(app_rate(args.artifact, shape, args.seconds))
        own.append(own_rate(args.artifact, args.runs))
        print(f"benchmark_app {limits[-1]:.1f}, boxwright {own[-1]:.1f} requests/s", file=sys.stderr, flush=True)
    print(hardware_line())
    print(f"{args.artifact}, input {shape}, medians of {args.rounds} rounds in turns")
    print(f"benchmark_app    {median(limits):8.1f} requests/s   100.0 %")
    print(f"boxwright        {median(own):8.1f} requests/s   {100 * median(own) / median(limits):5.1f} %")


if __name__ == "__main__":
    main()
