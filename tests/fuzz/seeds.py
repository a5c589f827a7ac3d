"""The valid files that are mutated: small models in each form, labelled sets, pictures and videos."""

from pathlib import Path

RUNTIMES = ("onnxruntime", "openvino", "eager", "jit")
SIZE_HW = (64, 64)
NAMES = ("circle", "square", "star")


def make_seeds(folder: Path) -> None:
    """Write them into a new folder, which takes seconds. Call it in a separate process: libraries start threads."""
    folder.mkdir(parents=True)
    _make_models(folder / "models")
    _make_sets(folder / "sets")
    _make_pictures(folder / "pictures")
    _make_videos(folder / "videos")


def _make_models(folder: Path) -> None:
    import torch
    from support.networks import lively_nano
    from support.toy import save_toy_onnx, toy_spec

    from boxwright.core.errors import MissingDependencyError
    from boxwright.core.spec import Spec
    from boxwright.detector.weights import save_weights
    from boxwright.runtimes.artifact import write_artifact
    from boxwright.runtimes.base import Choice
    from boxwright.runtimes.source import Source

    torch.set_num_threads(1)
    folder.mkdir()
    nano = lively_nano(len(NAMES))
    torch.save(nano.state_dict(), folder / "plain.pth")
    torch.save({"model": nano.state_dict(), "start_epoch": 3, "best_ap": 0.5}, folder / "official.pth")
    spec = Spec(model="yolox_nano", names=NAMES, size_hw=SIZE_HW)
    save_weights(folder / "nano.safetensors", nano, spec)
    save_toy_onnx(folder / "toy.onnx", spec=toy_spec())
    save_toy_onnx(folder / "foreign.onnx", form="decoded", free_size=True)
    # A smaller network than nano converts in a second.
    from support.models import tiny_detector

    source = Source.of(tiny_detector(), (torch.rand(1, 3, *SIZE_HW) * 255,))
    for runtime in RUNTIMES:
        try:
            write_artifact(source, Choice(runtime=runtime), folder / runtime, spec=Spec(names=NAMES, size_hw=SIZE_HW))
        except MissingDependencyError as error:
            print(error)


def _make_sets(folder: Path) -> None:
    from boxwright.data.formats import read_records, write_records
    from boxwright.data.synthetic import generate_scenes

    generate_scenes(folder / "coco", images=4, seed=3, size_hw=SIZE_HW, classes=NAMES)
    records = read_records(folder / "coco")
    for form in ("voc", "yolo"):
        for split, part in (("train", [0, 1]), ("val", [2, 3])):  # the check reports images that are in both
            write_records(records.select(part), folder / form, form, split=split)  # type: ignore[arg-type]
    for form in ("webdataset", "parquet"):
        write_records(records, folder / form, form, shard_images=2)  # type: ignore[arg-type]


def _make_pictures(folder: Path) -> None:
    import cv2
    from support.scenes import scene

    folder.mkdir()
    image = scene(("red", 1, 1), ("blue", 5, 2))
    for suffix in (".jpg", ".png", ".bmp", ".webp", ".tiff"):
        done, data = cv2.imencode(suffix, image)
        assert done
        (folder / f"scene{suffix}").write_bytes(data.tobytes())


def _make_videos(folder: Path) -> None:
    from support.scenes import save_video, scene

    folder.mkdir()
    save_video(folder / "scene.mp4", [scene(("red", at, 1)) for at in range(4)])
