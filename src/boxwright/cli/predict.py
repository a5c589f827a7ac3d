"""Find objects in images, folders, globs, videos, cameras (0), RTSP/HTTP streams, or one image on stdin (-)."""

import argparse
import json
from collections import Counter
from pathlib import Path

from boxwright.cli.options import add_model_arguments, fraction, model_options, positive, split_list
from boxwright.core.errors import UsageError
from boxwright.core.log import get_logger

_log = get_logger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this verb's arguments."""
    add_model_arguments(parser)
    parser.add_argument(
        "sources", metavar="SOURCE", nargs="+", help="image, folder, glob, video, camera number, URL or -"
    )
    parser.add_argument("--conf", type=fraction, default=0.25, help="least score (default 0.25)")
    parser.add_argument(
        "--nms", type=fraction, default=0.45, help="overlap above which the lower box goes (default 0.45)"
    )
    parser.add_argument("--class-agnostic", action="store_true", help="suppress across classes too")
    parser.add_argument("--classes", metavar="LIST", help="only these classes: person,dog")
    parser.add_argument("-b", "--batch", type=positive, default=1, help="images at once (default 1)")
    parser.add_argument("--out", metavar="DIR", type=Path, help="folder for the files (default runs/predict/exp…)")
    parser.add_argument(
        "--save", metavar="FORMAT", nargs="*", default=["images"], choices=("images", "json", "csv", "coco", "yolo"),
        help="files to write: images json csv coco yolo; none with an empty --save (default images)",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Predict, write the files, print a line an image; 3 if any input could not be read."""
    from boxwright.recipes.outputs import Outputs, to_record
    from boxwright.recipes.predict import Predictor, Thresholds
    from boxwright.recipes.runs import new_run_folder
    from boxwright.recipes.sources import Failure, source_folders

    if args.out and not args.save:
        raise UsageError("--out names a folder, but --save is empty: nothing would be written. Leave one of them out.")
    if args.out and "images" in args.save and args.out.resolve() in source_folders(args.sources):
        raise UsageError(
            f"--out {str(args.out)!r} is a folder of the sources: pictures could overwrite them. Choose another --out."
        )
    thresholds = Thresholds(
        conf=args.conf,
        nms=args.nms,
        class_agnostic=args.class_agnostic,
        classes=None if args.classes is None else split_list(args.classes),
    )
    images = failures = 0
    with Predictor.load(args.model, thresholds=thresholds, options=model_options(args)) as predictor:
        folder = args.out or (new_run_folder(Path("runs/predict")) if args.save else Path())
        with Outputs(folder, args.save, predictor.session.spec.category_ids) as outputs:
            for item in predictor.stream(list(args.sources), batch=args.batch):
                if args.json:
                    print(json.dumps(to_record(item)), flush=True)
                if isinstance(item, Failure):
                    failures += 1
                    _log.error("%s", item.error)
                    continue
                images += 1
                outputs.write(item)
                if item.frame.index is None and not args.json:
                    print(f"{item.frame.source}: {_count(item.detections.labels)}")
                elif item.frame.index is not None and (item.frame.index + 1) % 100 == 0:
                    _log.info("%s: %d frames", item.frame.source, item.frame.index + 1)
        if images:
            _log.info("%d images: %s", images, predictor.watch.report(images))
            if args.save:
                _log.info("Written to %s", folder)
    if failures:
        _log.error("%d of %d inputs could not be read.", failures, failures + images)
    return 3 if failures else 0


def _count(labels: list[str]) -> str:
    return ", ".join(f"{n} {name}" for name, n in Counter(labels).most_common()) or "nothing found"
