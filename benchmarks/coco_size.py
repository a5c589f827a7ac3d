"""Run `python benchmarks/coco_size.py [--images 118287] [--folder FOLDER] [--only reading,start,check,eval,memory]`.

What a set of COCO's size costs, beside pycocotools in the same run: reading its labels the first and the second time,
the first training step after the command, the memory of a rank, `data check` against decoding alone, and `eval`.

The set is generated: hard links of a few scenes, and a json with polygons (394 MB for all 118,287 images). Every
figure comes from a process of its own, with the peak of its resident memory as the system counts it. Needs
pycocotools, which Boxwright itself does not. `--images 2000` shows in a minute that it works.

`--only memory` runs each command that reads a set over all images (predict and eval with inputs of 64 x 64, which take
an hour for all 118,287), and `--only parsers` compares orjson, if it is installed, with our reading.
"""

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from subprocess import DEVNULL
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np
import psutil

from boxwright.core.cpu import read_cpu
from boxwright.data.synthetic import draw_scene

SIZE_HW = (480, 640)
SCENES = 16
BOXES_PER_IMAGE = 845_981 / 118_287
CLASSES = 80
POINTS = 19  # of a polygon: makes the json as large as COCO's
PARTS = ("reading", "start", "check", "eval")  # by default
MORE = ("memory", "parsers")
HERE = Path(__file__)


def make_set(folder: Path, images: int) -> Path:
    """Write the set and return its json; one that is there already stays."""
    file = folder / "annotations" / "instances_train2017.json"
    if file.exists():
        return file
    pictures, scenes = folder / "train2017", folder / "scenes"
    for place in (pictures, scenes, file.parent):
        place.mkdir(parents=True, exist_ok=True)
    sources = []
    for number in range(SCENES):
        pixels, _, _ = draw_scene(1, number, SIZE_HW)
        sources.append(scenes / f"{number}.jpg")
        sources[-1].write_bytes(cv2.imencode(".jpg", pixels)[1].tobytes())
    names = [f"{number:012d}.jpg" for number in range(images)]
    for number, name in enumerate(names):
        if not (pictures / name).exists():
            os.link(sources[number % SCENES], pictures / name)
    draft = file.with_suffix(".draft")
    write_labels(draft, names)
    draft.rename(file)
    return file


def write_labels(file: Path, names: Sequence[str]) -> None:
    """Write a json as COCO's: every field, with polygons."""
    rng = np.random.default_rng(0)
    height, width = SIZE_HW
    with file.open("w", encoding="utf-8") as out:
        out.write('{"info": {"year": 2017}, "licenses": [{"id": 1, "name": "none"}], "images": [')
        for number, name in enumerate(names):
            out.write(", " if number else "")
            image = {"license": 1, "file_name": name, "coco_url": f"http://images.cocodataset.org/train2017/{name}"}
            times = {"date_captured": "2013-11-14 11:18:45", "flickr_url": f"http://farm9.staticflickr.com/{number}"}
            out.write(json.dumps(image | {"height": height, "width": width} | times | {"id": number + 1}))
        out.write('], "annotations": [')
        counts = rng.poisson(BOXES_PER_IMAGE, len(names))
        made = 0
        for image_id, count in enumerate(counts.tolist(), start=1):
            low = rng.uniform(0, 300, (count, 2)).round(2)
            side = rng.uniform(8, 170, (count, 2)).round(2)
            category = rng.integers(1, CLASSES + 1, count).tolist()
            turns = rng.uniform(0, 1, (count, POINTS, 2))
            outlines = (low[:, None] + turns * side[:, None]).round(2).reshape(count, 2 * POINTS).tolist()
            for (x, y), (w, h), one, outline in zip(low.tolist(), side.tolist(), category, outlines, strict=True):
                made += 1
                out.write(
                    f'{", " if made > 1 else ""}{{"segmentation": [{outline}], "area": {w * h:.4f}, "iscrowd": 0, '
                    f'"image_id": {image_id}, "bbox": [{x}, {y}, {w}, {h}], "category_id": {one}, "id": {made}}}'
                )
        classes = [{"supercategory": "thing", "id": n, "name": f"class {n}"} for n in range(1, CLASSES + 1)]
        out.write(f'], "categories": {json.dumps(classes)}}}')


def read_with_boxwright(file: Path) -> int:
    from boxwright.data.formats import read_records

    return len(read_records(file).boxes_xyxy)


def read_with_pycocotools(file: Path) -> int:
    from pycocotools.coco import COCO

    return len(COCO(str(file)).anns)


def read_with_orjson(file: Path) -> int:
    import orjson

    return len(orjson.loads(file.read_bytes())["annotations"])


def parse_and_pack(file: Path) -> int:
    from boxwright.data.formats.coco_labels import read_labels

    return len(read_labels(file).records.boxes_xyxy)


def import_boxwright(_: Path) -> int:
    import boxwright.data.formats

    return len(boxwright.data.formats.__all__)


def decode_alone(file: Path) -> int:
    """Read and decode every image, on as many threads as there are cores."""
    from boxwright.data.threads import hold_opencv_threads, map_threads

    paths = sorted((file.parent.parent / "train2017").iterdir())
    hold_opencv_threads()

    def decode(number: int) -> int:
        return cv2.imdecode(np.frombuffer(paths[number].read_bytes(), np.uint8), cv2.IMREAD_COLOR).shape[0]

    return sum(1 for _ in map_threads(decode, len(paths), read_cpu().usable_cores))


def check(file: Path) -> int:
    from boxwright.tasks.data import check_set

    return next(iter(check_set(file).values())).checked


JOBS = {
    "import": import_boxwright, "read": read_with_boxwright, "pycocotools": read_with_pycocotools,
    "decode": decode_alone, "check": check, "orjson": read_with_orjson, "pack": parse_and_pack,
}  # fmt: skip


def run_job(name: str, file: Path) -> None:
    """Run one job in this process and print its seconds, peak memory and result."""
    start = time.perf_counter()
    result = JOBS[name](file)
    seconds = time.perf_counter() - start
    print(json.dumps({"s": seconds, "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "n": result}))


def measure(name: str, file: Path, environment: dict[str, str]) -> dict[str, float]:
    """Return what `run_job` prints in a process of its own."""
    command = [sys.executable, str(HERE), "--job", name, "--file", str(file)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def time_first_step(file: Path, out: Path, processes: int, environment: dict[str, str]) -> dict[str, Any]:
    """Return the seconds from the command to the first step, and the memory of each rank then."""
    words = ["val=0", "steps=2", "batch=2", "print_interval=1", "eval_interval=0", "workers=1"]
    command = [sys.executable, "-m", "boxwright", "train", "-q", "--data", str(file), "--out", str(out), *words]
    log, start = out / "metrics.jsonl", time.perf_counter()
    with subprocess.Popen([*command, "--num_processes", str(processes)], env=environment, stdout=DEVNULL) as run:
        while not (log.exists() and log.stat().st_size) and run.poll() is None:
            time.sleep(0.02)
        seconds, ranks = time.perf_counter() - start, []
        with_children = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        for process in with_children:
            try:
                memory = process.memory_full_info()
            except (psutil.NoSuchProcess, psutil.AccessDenied):
                continue
            ranks.append({"rss_mb": memory.rss / 2**20, "own_mb": memory.uss / 2**20})
        if run.wait():
            raise SystemExit(f"Training ended with {run.returncode}.")
    # Of the starting process and its helpers, only those that train hold much.
    ranks = sorted(ranks, key=lambda rank: -rank["own_mb"])[:processes]
    return {"s": seconds, "ranks": ranks}


def show_reading(file: Path, environment: dict[str, str]) -> None:
    base = measure("import", file, environment)["mb"]
    first, second = measure("read", file, environment), measure("read", file, environment)
    peer = measure("pycocotools", file, environment)
    print(f"\nreading ({first['n']:.0f} boxes; importing alone takes {base:.0f} MB)")
    print(f"  pycocotools          {peer['s']:7.2f} s  {peer['mb']:6.0f} MB")
    for title, found in (("Boxwright, first", first), ("Boxwright, second", second)):
        times, part = f"{peer['s'] / found['s']:.1f}x faster", f"{found['mb'] / peer['mb']:.2f} of the memory"
        print(f"  {title:<20} {found['s']:7.2f} s  {found['mb']:6.0f} MB  {times}, {part}")


def show_start(file: Path, work: Path, environment: dict[str, str]) -> None:
    print("\nfirst training step after the command")
    for processes in (1, 2):
        # A cache folder of its own, so that every number of processes has a first run.
        own = environment | {"BOXWRIGHT_CACHE": str(work / f"cache_{processes}")}
        for title in ("first run", "later run"):
            out = work / f"run_{processes}_{title.split()[0]}"
            found = time_first_step(file, out, processes, own)
            ranks = ", ".join(f"{rank['rss_mb']:.0f} MB ({rank['own_mb']:.0f} of its own)" for rank in found["ranks"])
            print(f"  {processes} process(es), {title}: {found['s']:6.2f} s; memory of a rank: {ranks}")


def show_check(file: Path, environment: dict[str, str]) -> None:
    alone, checked = measure("decode", file, environment), measure("check", file, environment)
    rates = [found["n"] / found["s"] for found in (alone, checked)]
    print(f"\ndata check: {rates[1]:.0f} images/s, {checked['mb']:.0f} MB")
    print(f"  decoding alone: {rates[0]:.0f} images/s; the check gives {rates[1] / rates[0]:.2f} of it")


def run_command(words: Sequence[str], environment: dict[str, str]) -> tuple[bytes, int, float]:
    """Return what a command prints, its exit code, and the peak of its memory in MB."""
    command = [sys.executable, "-m", "boxwright", *words, "-q"]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE) as run:
        assert run.stdout is not None
        printed = run.stdout.read()
        # Not run.wait(): wait4 tells the peak of this child alone.
        _, status, used = os.wait4(run.pid, 0)
        run.returncode = os.waitstatus_to_exitcode(status)
    return printed, run.returncode, used.ru_maxrss / 1024


def trained(file: Path, work: Path, environment: dict[str, str]) -> Path:
    """Return weights for the set's classes, after two steps."""
    model = work / "run_eval"
    if not model.exists():
        time_first_step(file, model, 1, environment)
    return model / "weights" / "last.safetensors"


def show_memory(file: Path, work: Path, environment: dict[str, str]) -> None:
    data, weights, out = str(file), str(trained(file, work, environment)), str(work / "written")
    small = ["--size", "64"]
    commands = [
        ["data", "stats", data],
        ["data", "preview", data, "--out", f"{out}/preview"],
        ["data", "split", data, f"{out}/split", "--link"],
        *(["data", "convert", data, f"{out}/{to}", "--to", to, "--link"] for to in ("coco", "yolo", "voc")),
        ["data", "stats", f"{out}/yolo"],
        ["data", "stats", f"{out}/voc"],
        ["data", "check", data],
        ["predict", weights, str(file.parent.parent / "train2017"), "--save", "json", "--out", f"{out}/found", *small],
        ["eval", weights, "--data", data, *small],
    ]
    print("\npeak memory of a command over all images")
    for words in commands:
        start = time.perf_counter()
        _, code, peak_mb = run_command(words, environment)
        shown = " ".join(Path(word).name if os.sep in word else word for word in words)
        print(f"  {peak_mb:6.0f} MB  {time.perf_counter() - start:6.0f} s  exit {code}  {shown}", flush=True)


def show_parsers(file: Path, environment: dict[str, str]) -> None:
    print("\nparsing")
    for title, job in (("orjson, to objects", "orjson"), ("msgspec, to packed arrays", "pack")):
        found = measure(job, file, environment)
        print(f"  {title:<26} {found['s']:7.2f} s  {found['mb']:6.0f} MB  {found['n']:.0f} boxes", flush=True)


def show_eval(file: Path, work: Path, environment: dict[str, str], limit: int) -> None:
    weights = str(trained(file, work, environment))
    start = time.perf_counter()
    printed, _, peak_mb = run_command(
        ["eval", weights, "--data", str(file), "--json", "--limit", str(limit)], environment
    )
    seconds, score = time.perf_counter() - start, json.loads(printed)
    print(f"\neval of {limit} images: {seconds:.1f} s, {score['images_per_s']} images/s, {peak_mb:.0f} MB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=118_287, help="images of the set (default 118287)")
    parser.add_argument("--folder", type=Path, help="where the set is made and kept; by default it is deleted")
    parser.add_argument("--only", default=",".join(PARTS), help=f"some of {','.join(PARTS + MORE)}")
    parser.add_argument("--eval-images", type=int, default=5000, help="images that eval scores (default 5000)")
    parser.add_argument("--job", choices=JOBS, help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.job:
        run_job(args.job, args.file)
        return
    wanted = args.only.split(",")
    if unknown := set(wanted) - {*PARTS, *MORE}:
        parser.error(f"--only: {', '.join(sorted(unknown))} is none of {', '.join(PARTS + MORE)}")
    with TemporaryDirectory() as work:
        file = make_set(args.folder or Path(work) / "set", args.images)
        environment = os.environ | {"BOXWRIGHT_CACHE": str(Path(work) / "cache")}
        cpu = read_cpu()
        print(f"{platform.processor() or platform.machine()}, {cpu.usable_cores} cores")
        print(f"{args.images} images, json of {file.stat().st_size / 1e6:.0f} MB")
        if "reading" in wanted:
            show_reading(file, environment)
        if "start" in wanted:
            show_start(file, Path(work), environment)
        if "check" in wanted:
            show_check(file, environment)
        if "eval" in wanted:
            show_eval(file, Path(work), environment, min(args.eval_images, args.images))
        if "memory" in wanted:
            show_memory(file, Path(work), environment)
        if "parsers" in wanted:
            show_parsers(file, environment)


if __name__ == "__main__":
    main()
