"""Find objects in images, folders, globs, videos, cameras (0), RTSP/HTTP streams, or one image on stdin (-)."""

import argparse
import json
from collections import Counter
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from boxwright.cli.ending import say
from boxwright.cli.options import (
    PLACES,
    add_device_argument,
    add_hint_arguments,
    add_model_arguments,
    add_trust_argument,
    check_hint_arguments,
    filled,
    fraction,
    model_options,
    positive,
    split_list,
)
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger
from boxwright.core.text import printable

if TYPE_CHECKING:
    from boxwright.tasks.predict.predictor import Thresholds

_log = get_logger(__name__)
_ENGINE_OPTIONS = ("threads", "address", "master", "column", "part_rows")
_SAVE = ["images"]  # this very list means that --save was not given


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_model_arguments(parser)
    parser.add_argument(
        "sources", metavar="SOURCE", nargs="+", type=filled, help="image, folder, glob, video, camera number, URL or -"
    )
    parser.add_argument("--conf", type=fraction, default=0.25, help="lowest score (default 0.25)")
    parser.add_argument(
        "--nms", type=fraction, default=0.45, help="overlap above which the lower-scored box is dropped (default 0.45)"
    )
    parser.add_argument("--class-agnostic", action="store_true", help="suppress boxes across classes too")
    parser.add_argument("--classes", metavar="LIST", help="only these classes: person,dog")
    parser.add_argument("-b", "--batch", type=positive, default=1, help="images at once (default 1)")
    parser.add_argument(
        "--workers", metavar="N", type=positive,
        help="artifacts and .onnx: pictures in parallel, at most one per core (default 1; with --engine, all that fit)",
    )  # fmt: skip
    add_hint_arguments(
        parser,
        "artifacts and .onnx: choose threads, streams and processes for the fastest answer to one picture, or for "
        "the most pictures per second (default: one picture at a time, the runtime's own number of threads)",
    )
    add_device_argument(parser, PLACES)
    add_trust_argument(parser)
    parser.add_argument("--out", metavar="DIR", type=filled, help="folder for the files (default runs/predict/exp…)")
    parser.add_argument("--overwrite", action="store_true", help="replace the results of an earlier run in --out")
    parser.add_argument(
        "--save", metavar="FORMAT", nargs="*", default=_SAVE, choices=("images", "json", "csv", "coco", "yolo"),
        help="files to write: images json csv coco yolo; none with an empty --save (default images)",
    )  # fmt: skip
    _add_engine_arguments(parser)


def _add_engine_arguments(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "many images", "A folder or parquet file of any size into parquet files, by workers; the same command resumes."
    )
    group.add_argument("--engine", choices=("local", "ray", "spark"), help="what runs the workers")
    group.add_argument("--threads", metavar="N", type=positive, help="computing threads per worker (default 1)")
    group.add_argument("--address", metavar="HOST:PORT", help="the Ray cluster (default RAY_ADDRESS, or a new one)")
    group.add_argument("--master", metavar="URL", help="the Spark master (default the active session's, or local)")
    group.add_argument("--column", metavar="NAME", help="the column of a parquet file that holds the images")
    group.add_argument("--part-rows", metavar="N", type=positive, help="images per file of results (default 256)")


def run(args: argparse.Namespace) -> int:
    """Predict, write the files, print a line per image; return 3 if any input could not be read."""
    from boxwright.tasks.predict.predictor import Thresholds
    from boxwright.tasks.program import keep_freed_memory

    keep_freed_memory()
    check_hint_arguments(args)
    if args.hint is not None and args.workers is not None:
        raise UsageError(f"--hint {args.hint} chooses --workers itself. Leave one of them out.")
    thresholds = Thresholds(
        conf=args.conf,
        nms=args.nms,
        class_agnostic=args.class_agnostic,
        classes=None if args.classes is None else split_list(args.classes),
    )
    if args.engine is not None:
        return _run_batch(args, thresholds)
    for name in _ENGINE_OPTIONS:
        if getattr(args, name) is not None:
            option = f"--{name.replace('_', '-')} {getattr(args, name)}"
            raise UsageError(f"{option} does nothing without --engine. Add --engine local, ray or spark.")
    return _run_stream(args, thresholds)


def _run_batch(args: argparse.Namespace, thresholds: "Thresholds") -> int:
    """Predict a whole set into parquet files; an image that can't be read is a row with an error, not a failure."""
    from boxwright.core.log import progress_bar
    from boxwright.core.packages import require

    if len(args.sources) != 1:
        raise UsageError(f"--engine {args.engine} takes one folder, parquet file or URL, not {len(args.sources)}.")
    if args.hint is not None:
        raise UsageError(
            f"--hint {args.hint} does not apply to --engine {args.engine}. Set its --workers and --threads."
        )
    if args.out is None:
        raise UsageError(f"--engine {args.engine} needs --out DIR: the same command resumes there.")
    if args.overwrite:
        raise UsageError(f"--overwrite does not apply to --engine {args.engine}, which resumes in --out. Leave it out.")
    if args.save is not _SAVE:
        raise UsageError(f"--save does not apply to --engine {args.engine}, which writes parquet files. Leave it out.")
    given = {name: value for name in ("workers", *_ENGINE_OPTIONS) if (value := getattr(args, name)) is not None}
    require("pyarrow", extra="batch", by=f"--engine {args.engine}")
    from boxwright.tasks.batch.config import BatchConfig
    from boxwright.tasks.batch.job import predict_in_batches

    config = BatchConfig(
        model=args.model,
        data=args.sources[0],
        out=args.out,
        engine=args.engine,
        batch=args.batch,
        thresholds=thresholds,
        options=model_options(args),
        trust=args.trust,
        device=args.device,
        **given,
    )
    with progress_bar(hidden=args.quiet) as show:
        result = predict_in_batches(config, partial(show, "Predicting"))
    if args.json:
        print(json.dumps(result.to_dict()))
    else:
        before = f", {result.skipped} of them by an earlier run" if result.skipped else ""
        print(f"{result.images} images in {result.parts} parts{before}: {result.out}")
    if result.errors:
        _log.warning("%d images could not be read; their rows say why.", result.errors)
    return 0


def _run_stream(args: argparse.Namespace, thresholds: "Thresholds") -> int:
    from boxwright.tasks.predict.inputs import Failure, source_folders
    from boxwright.tasks.predict.outputs import Outputs, refuse_results, to_record
    from boxwright.tasks.predict.predictor import Predictor
    from boxwright.tasks.run_folders import new_run_folder

    out = None if args.out is None else Path(args.out)
    if out and not args.save:
        raise UsageError("--out names a folder, but --save is empty: nothing would be written. Leave one of them out.")
    if args.overwrite and not out:
        raise UsageError("--overwrite replaces the results in --out DIR, which is not given. Leave it out.")
    if out and "images" in args.save and out.resolve() in source_folders(args.sources):
        raise UsageError(
            f"--out {str(out)!r} is a folder of the sources: pictures could overwrite them. Choose another --out."
        )
    if out and not args.overwrite:
        refuse_results(out, args.save)  # before the model is loaded
    images = failures = 0
    with Predictor.load(
        args.model,
        thresholds=thresholds,
        options=model_options(args),
        workers=args.workers or 1,
        hint=args.hint,
        trust=args.trust,
        device=args.device,
    ) as predictor:
        if args.explain and predictor.arrangement is not None:
            say(predictor.arrangement.explain())
        folder = out or (new_run_folder(Path("runs/predict")) if args.save else Path())
        ids = predictor.session.spec.category_ids
        with Outputs(folder, args.save, ids, overwrite=args.overwrite) as outputs:
            for item in predictor.stream(list(args.sources), batch=args.batch):
                if isinstance(item, Failure):
                    failures += 1
                    _log.error("%s", item.error)
                else:
                    images += 1
                    outputs.write(item)  # first: what was printed is on disk
                if args.json:
                    print(json.dumps(to_record(item)), flush=True)
                if isinstance(item, Failure):
                    continue
                source, index = item.frame.source, item.frame.index
                if index is None and not args.json:
                    print(f"{printable(source, lines=False)}: {_count(item.detections.labels)}", flush=True)
                elif index is not None and (index + 1) % 100 == 0:
                    _log.info("%s: %d frames", source, index + 1)
        if images:
            _log.info("%d images: %s", images, predictor.watch.report(images))
            if args.save:
                _log.info("Written to %s", folder)
    if failures:
        _log.error("%d of %d inputs could not be read.", failures, failures + images)
    return 3 if failures else 0


def _count(labels: list[str]) -> str:
    found = Counter(labels).most_common()
    return ", ".join(f"{n} {printable(name, lines=False)}" for name, n in found) or "nothing found"
