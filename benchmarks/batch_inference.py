"""python benchmarks/batch_inference.py [--model MODEL] [--images 2000] [--workers 2] [--engines local ray spark]

Images per second and core of batch prediction on each engine, against the predictor of this process with one thread on
the same images, decoding included. "Busy" counts the time that workers spend on parts (reading, predicting, writing);
"whole" counts everything, the start of the engine and of the models too, and grows towards busy with more images. All
workers run at once and share the memory and the clock of one machine, the lone predictor does not: `local` shows what
that costs without an engine.

With --rows 1000000, a table of so many small images (64 x 64, 2 GB) is predicted with an input of 32 x 32, and the
memory of the driver (this process, and Spark's Java process) is printed after each tenth.
"""

import argparse
import tempfile
import time
from pathlib import Path

import cv2
import psutil
import pyarrow as pa
import pyarrow.parquet as pq

from boxwright.core.timing import hardware_line
from boxwright.data.synthetic import generate_scenes
from boxwright.runtimes.base import Tuning
from boxwright.tasks.batch.config import BatchConfig, EngineName
from boxwright.tasks.batch.job import predict_in_batches
from boxwright.tasks.models import open_model
from boxwright.tasks.predict.predictor import Predictor

_FILE_ROWS = 10_000


def make_images(folder: Path, count: int, side: int) -> None:
    """Fill a folder with images: some scenes, again and again under new names."""
    drawn = folder.parent / "drawn"
    generate_scenes(drawn, images=min(count, 50), seed=0, size_hw=(side, side))
    files = [path.read_bytes() for path in sorted(drawn.rglob("*")) if path.suffix in (".jpg", ".png")]
    folder.mkdir()
    for number in range(count):
        (folder / f"{number:06d}.jpg").write_bytes(files[number % len(files)])


def make_model(folder: Path, size: int) -> Path:
    """Write an untrained nano as an artifact for ONNX Runtime."""
    import torch

    from boxwright.core.spec import Spec
    from boxwright.detector.yolox import build
    from boxwright.runtimes.artifact import write_artifact
    from boxwright.runtimes.base import Choice
    from boxwright.runtimes.source import Source

    torch.manual_seed(0)
    source = Source.of(build("yolox_nano", 80).eval(), (torch.zeros(1, 3, size, size),))
    spec = Spec(model="yolox_nano", names=tuple(f"class_{n}" for n in range(80)), size_hw=(size, size))
    write_artifact(source, Choice(runtime="onnxruntime"), folder, spec=spec)
    return folder


def make_table(folder: Path, rows: int) -> None:
    """Write parquet files of 10,000 small images each: some scenes, again and again."""
    drawn = folder.parent / "small"
    generate_scenes(drawn, images=50, seed=0, size_hw=(64, 64))
    images = [path.read_bytes() for path in sorted(drawn.rglob("*")) if path.suffix in (".jpg", ".png")]
    folder.mkdir()
    for start in range(0, rows, _FILE_ROWS):
        numbers = range(start, min(start + _FILE_ROWS, rows))
        columns = {"path": [f"{n:09d}.jpg" for n in numbers], "image": [images[n % len(images)] for n in numbers]}
        pq.write_table(pa.table(columns), folder / f"{start:09d}.parquet", row_group_size=256, use_dictionary=False)


def driver_mb() -> float:
    """Return the memory of this process, and of a Java process that it has started."""
    own = psutil.Process()
    family = [own, *(child for child in own.children(recursive=True) if child.name() == "java")]
    return float(sum(one.memory_info().rss for one in family) / 2**20)


def watch_driver(root: Path, rows: int, engine: EngineName, workers: int, part_rows: int) -> None:
    """Predict a table and print the memory of the driver after each tenth of it."""
    if not (root / "table").exists():
        make_table(root / "table", rows)
        make_model(root / "tiny", 32)
    seen: dict[int, float] = {}

    def note(done: int, total: int) -> None:
        seen.setdefault(10 * done // total, driver_mb())

    config = BatchConfig(
        model=root / "tiny",
        data=root / "table",
        out=root / f"rows_{engine}",
        engine=engine,
        workers=workers,
        threads=1,
        part_rows=part_rows,
    )
    start_s = time.perf_counter()
    result = predict_in_batches(config, note)
    seconds = time.perf_counter() - start_s
    print(
        f"{engine}: {result.images} rows in {result.parts} parts, {seconds:.0f} s, {result.images / seconds:.0f} rows/s"
    )
    print("  driver, MB: " + ", ".join(f"{mb:.0f}" for tenth, mb in sorted(seen.items()) if tenth), flush=True)


def time_alone(model: Path, images: Path) -> float:
    """Return images per second of one predictor with one thread."""
    cv2.setNumThreads(1)
    files = sorted(images.iterdir())
    with Predictor(open_model(model, tuning=Tuning(threads=1))) as predictor:
        predictor(files[0])
        start_s = time.perf_counter()
        done = sum(1 for _ in predictor.stream(list(files)))
        return done / (time.perf_counter() - start_s)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="an artifact or .onnx (default: an untrained nano)")
    parser.add_argument("--size", type=int, default=416, help="of the untrained nano")
    parser.add_argument("--side", type=int, default=640, help="of the images")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--rows", type=int, help="predict a table of so many small images, and watch the driver")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--part-rows", type=int, default=256)
    parser.add_argument("--engines", nargs="+", choices=["local", "ray", "spark"], default=["local", "ray", "spark"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        if args.rows:
            print(f"{hardware_line()}; {args.workers} workers with one thread")
            for engine in args.engines:
                watch_driver(root, args.rows, engine, args.workers, args.part_rows)
            return
        make_images(root / "images", args.images, args.side)
        model = args.model or make_model(root / "nano", args.size)
        alone = time_alone(model, root / "images")
        print(f"{hardware_line()}; {args.images} images of {args.side}, {args.workers} workers with one thread")
        print(f"{'predictor alone':16} {alone:8.1f} images/s and core")
        for engine in args.engines:
            config = BatchConfig(
                model=model,
                data=root / "images",
                out=root / engine,
                engine=engine,
                workers=args.workers,
                threads=1,
                part_rows=args.part_rows,
            )
            start_s = time.perf_counter()
            result = predict_in_batches(config)
            whole_s = time.perf_counter() - start_s
            busy, whole = result.images / result.busy_s, result.images / whole_s / args.workers
            print(
                f"{engine:16} {busy:8.1f} busy, {100 * busy / alone:5.1f} %   "
                f"{whole:8.1f} whole, {100 * whole / alone:5.1f} %",
                flush=True,
            )


if __name__ == "__main__":
    main()
