"""python -m tests.fuzz [--seconds 600] [--seed 0] [--resume] [--only model set] [--replay FOLDER]

Mutates models, labelled sets, pictures, videos, command lines and calls, and checks each run of Boxwright: a documented
exit code, no traceback, limits of time and memory, no access outside its folders, and no process left behind.
Prints counts; exits with 1 if anything was found. Findings are in OUT/findings, each with the command that replays it.
"""

import argparse
import json
import os
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzz.hunt import Counts, make_seeds_apart, preload, replay, work


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=600, help="how long (default 600)")
    parser.add_argument("--inputs", type=int, help="maximum number of inputs")
    parser.add_argument("--seed", type=int, help="default: random, and printed")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="parallel inputs (default one per CPU)")
    parser.add_argument("--only", nargs="+", default=[], help="model, artifact, set, picture, video, command, call")
    parser.add_argument("--out", type=Path, default=Path("runs/fuzz"), help="folder (default runs/fuzz)")
    parser.add_argument("--resume", action="store_true", help="continue the last run, with its seed")
    parser.add_argument("--wall", type=float, default=20, help="time limit of an input in seconds (default 20)")
    parser.add_argument("--cpu", type=float, default=20, help="its limit of CPU time in seconds (default 20)")
    parser.add_argument("--replay", type=Path, metavar="FOLDER", help="run a kept input again")
    return parser.parse_args()


def main() -> int:
    args = parse()
    args.out = args.out.absolute()
    args.out.mkdir(parents=True, exist_ok=True)
    state = args.out / "state.json"
    values = json.loads(state.read_text()) if args.resume and state.exists() else {}
    args.seed = values.get("seed", args.seed if args.seed is not None else random.randrange(10**6))
    args.first = values.get("next", 0)
    sys.dont_write_bytecode = True
    preload()
    if not (args.out / "seeds").exists():
        make_seeds_apart(args.out / "seeds")
    if args.replay:
        return replay(args.replay, args)
    print(f"seed {args.seed}, from input {args.first}", flush=True)
    begin_s = time.monotonic()
    args.end_s = begin_s + args.seconds
    counts = Counts(values.get("counts"))
    before_s = counts.seconds
    reader, writer = os.pipe()
    workers = []
    for number in range(args.jobs):
        workers.append(pid := os.fork())
        if pid == 0:
            os.close(reader)
            work(number, args, writer)
            os._exit(0)
    os.close(writer)
    after = dict.fromkeys(range(args.jobs), args.first)
    with os.fdopen(reader) as lines:
        for line in lines:
            one = json.loads(line)
            counts.add(one)
            counts.seconds = before_s + time.monotonic() - begin_s
            after[(one["at"] - args.first) % args.jobs] = one["at"] + 1
            state.write_text(json.dumps({"seed": args.seed, "next": min(after.values()), "counts": vars(counts)}))
            if one["found"]:
                print(f"{one['name']} {one['kind']}: {one['words']!r}", *one["found"], sep="\n    ", flush=True)
    broken = [pid for pid in workers if os.waitpid(pid, 0)[1]]
    print("\n".join(counts.lines()))
    if counts.findings:
        print(f"Replay one with: python -m tests.fuzz --out {args.out} --replay {args.out}/findings/SEED-NUMBER")
    if broken:
        print(f"{len(broken)} workers of the fuzzer itself failed; the reason is above.")
    return 1 if counts.findings or broken else 0


if __name__ == "__main__":
    sys.exit(main())
