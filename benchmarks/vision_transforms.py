"""python benchmarks/vision_transforms.py [--images FOLDER] [--rounds 5]

Samples per second of one thread: ImageFolder, RandomResizedCrop(224), flip, ToTensor and Normalize, ours against
torchvision's in one interleaved run. Needs torchvision (which Boxwright itself does not). Without --images it draws
photograph-like JPEGs of two common sizes: ImageNet's 500x375 and a camera's 4000x3000.
"""

import argparse
import tempfile
from pathlib import Path

import cv2
import numpy as np
import torch

from boxwright.core.timing import hardware_line
from boxwright.data.synthetic import draw_scene
from boxwright.vision import datasets as our_datasets
from boxwright.vision import transforms as ours
from turns import interleave

MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def draw_photos(folder: Path, size_hw: tuple[int, int], count: int) -> None:
    """Draw scenes with fine grain, so that the files compress about as photographs do."""
    (folder / "class").mkdir(parents=True)
    rng = np.random.default_rng(0)
    for i in range(count):
        image, _, _ = draw_scene(0, i, (min(size_hw[0], 600), min(size_hw[1], 800)))
        image = cv2.resize(image, size_hw[::-1], interpolation=cv2.INTER_CUBIC)
        grain = rng.normal(0, 6, (size_hw[0] // 2, size_hw[1] // 2, 3)).astype(np.float32)
        image = np.clip(image + cv2.resize(grain, size_hw[::-1]), 0, 255).astype(np.uint8)
        cv2.imwrite(str(folder / "class" / f"{i}.jpg"), image, [cv2.IMWRITE_JPEG_QUALITY, 90])


def pipeline(t: object) -> object:
    return t.Compose(  # type: ignore[attr-defined]
        [t.RandomResizedCrop(224), t.RandomHorizontalFlip(), t.ToTensor(), t.Normalize(MEAN, STD)]  # type: ignore[attr-defined]
    )


def compare(folder: Path, rounds: int) -> None:
    from torchvision import datasets as their_datasets
    from torchvision import transforms as theirs

    sets = {
        "torchvision": their_datasets.ImageFolder(str(folder), pipeline(theirs)),
        "boxwright": our_datasets.ImageFolder(str(folder), pipeline(ours)),
        "boxwright, min_side=224": our_datasets.ImageFolder(str(folder), pipeline(ours), min_side=224),
        # What every epoch after the first has; the warm-up round fills the cache.
        "boxwright, cached": our_datasets.ImageFolder(str(folder), pipeline(ours), cache_bytes=1 << 30),
    }

    def run(name: str) -> None:
        torch.manual_seed(0)
        for image, _ in sets[name]:
            assert image.shape == (3, 224, 224)

    times = interleave({name: (lambda n=name: run(n)) for name in sets}, rounds, warmup=1)
    for name, timing in times.items():
        rate = len(sets[name]) / timing.median_ms * 1000
        print(f"  {name:24} {rate:8.1f} samples/s   {times.speedup('torchvision', name):.2f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of class folders")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    try:
        import torchvision
    except ImportError:
        print("torchvision is not installed: there is nothing to compare with.")
        return
    torch.set_num_threads(1)
    cv2.setNumThreads(1)
    print(f"{hardware_line()}; one thread; torchvision {torchvision.__version__}, OpenCV {cv2.__version__}")
    if args.images:
        compare(args.images, args.rounds)
        return
    for size_hw, count in (((375, 500), 60), ((3000, 4000), 6)):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            draw_photos(folder, size_hw, count)
            size = sum(p.stat().st_size for p in folder.rglob("*.jpg")) / count / 1000
            print(f"{size_hw[1]}x{size_hw[0]}, {size:.0f} kB per file:")
            compare(folder, args.rounds)


if __name__ == "__main__":
    main()
