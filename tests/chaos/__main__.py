"""python -m tests.chaos [--moments 20] [--seed 0] [--only predict …] [--list]

Kills commands and their processes (SIGTERM and SIGKILL) at seeded moments, and checks the outcome: the exit code, no
process left, no torn file, and a second or resumed run with the result of an uninterrupted one. Jobs on Ray and Spark
lose ranks, nodes and executors. Prints a line per kill and the counts; exits with 1 if any check failed.
"""

import argparse
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from chaos import engines
from chaos.commands import kill_at_moments
from chaos.jobs import make_inputs, make_jobs
from support.processes import adopt_orphans


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=20, help="kills of each kind (default 20)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", default=[], help="kinds whose names begin with these words")
    parser.add_argument("--moment", type=int, help="run only this moment again")
    parser.add_argument("--out", type=Path, default=Path("runs/chaos"), help="folder (default runs/chaos)")
    parser.add_argument("--list", action="store_true", help="print the kinds")
    args = parser.parse_args()
    inputs = args.out.absolute() / "inputs"
    names = [job.name for job in make_jobs(inputs, "x")] + ["Ray train", "Spark train"]
    chosen = [name for name in names if not args.only or any(name.startswith(word) for word in args.only)]
    if args.list or not chosen:
        print("\n".join(names))
        return 0 if args.list else 2
    adopt_orphans()
    if not inputs.exists():
        inputs.mkdir(parents=True)
        make_inputs(inputs)
    results: dict[str, list[bool]] = {}
    for job in make_jobs(inputs):
        if job.name in chosen:
            moments = args.moments if job.name != "Spark batch" else (args.moments + 1) // 2
            results[job.name] = kill_at_moments(job, inputs, seed=args.seed, moments=moments, only=args.moment)
    with ExitStack() as stack:
        if "Ray batch" in chosen or "Ray train" in chosen:
            results |= engines.kill_on_ray(stack, inputs, chosen, seed=args.seed, moments=args.moments)
    if "Spark train" in chosen:
        results["Spark train"] = engines.kill_on_spark(seed=args.seed, moments=args.moments)
    for name, went in results.items():
        print(f"{name}: {sum(went)} of {len(went)}")
    total = [one for went in results.values() for one in went]
    print(f"{sum(total)} of {len(total)}")
    return 0 if all(total) else 1


if __name__ == "__main__":
    sys.exit(main())
