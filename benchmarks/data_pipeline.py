"""Run `python benchmarks/data_pipeline.py [--data FOLDER] [--rounds 8] [--soak 20000]`.

Milliseconds for one augmented sample on one thread, as ratios from one interleaved run: Boxwright against the published
YOLOX pipeline, written plainly below (every image in full, a canvas of twice the size, float32 out). Two cases:
`yolox_s` at 640 with mosaic and mixup, and `yolox_nano` at 416. Each without a cache, with one in RAM, and with one on
disk. Then samples per second of the loader with 1 and 2 workers. `--soak` loads that many samples instead and prints
the memory in use, which must stay flat.

Without `--data` (any set that Boxwright reads), 400 synthetic scenes of 480 x 640 are drawn first.
"""

import argparse
import itertools
import math
import platform
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import cv2
import numpy as np

from boxwright.core.cpu import read_cpu
from boxwright.data.cache import TileCache, open_cache
from boxwright.data.dataset import DetectionDataset
from boxwright.data.formats import read_records
from boxwright.data.loader import Loader
from boxwright.data.policy import AugmentPolicy, policy_for
from boxwright.data.records import Records
from boxwright.data.synthetic import generate_scenes
from boxwright.data.threads import map_threads
from boxwright.data.tile import FileTiles, tile_bytes

PAD = 114
CASES = (("yolox_s", (640, 640)), ("yolox_nano", (416, 416)))
# Enough entries that no image comes again while it is among the recent ones.
LARGE = 3000
PER_ROUND = 25


class Original:
    """The published pipeline, one plain step after the other."""

    def __init__(self, records: Records, size_hw: tuple[int, int], policy: AugmentPolicy, *, cached: bool) -> None:
        self.records, self.size_hw, self.policy = records, size_hw, policy
        self.random = random.Random(0)
        self.labels = []
        for i in range(len(records)):
            keep = ~records.crowd_of(i)
            boxes = records.boxes(i)[keep].astype(np.float64)
            self.labels.append(np.column_stack((boxes, records.class_ids_of(i)[keep])))
        self.cache = [self.load(i) for i in range(len(records))] if cached else None

    def load(self, index: int) -> tuple[np.ndarray, float]:
        """Return an image from its file, fitted to the input, and the factor."""
        image = cv2.imread(str(self.records.path(index)))
        return self.fitted(image)

    def fitted(self, image: np.ndarray) -> tuple[np.ndarray, float]:
        """Return an image scaled to fit the input, and the factor."""
        ratio = min(self.size_hw[0] / image.shape[0], self.size_hw[1] / image.shape[1])
        size = int(image.shape[1] * ratio), int(image.shape[0] * ratio)
        return cv2.resize(image, size, interpolation=cv2.INTER_LINEAR).astype(np.uint8), ratio

    def pull(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return an image and its boxes."""
        image, ratio = self.load(index) if self.cache is None else self.cache[index]
        labels = self.labels[index].copy()
        labels[:, :4] *= ratio
        return image.copy() if self.cache is not None else image, labels

    def sample(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return one training sample."""
        if self.random.random() >= self.policy.mosaic_prob:
            return self.finished(*self.pull(index))
        image, labels = self.mosaic(index)
        if self.policy.mixup_prob and len(labels):
            image, labels = self.mixed(image, labels)
        return self.finished(image, labels)

    def mosaic(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Return four images on a canvas of twice the size, warped."""
        height, width = self.size_hw
        uniform = self.random.uniform
        centre_x, centre_y = int(uniform(0.5, 1.5) * width), int(uniform(0.5, 1.5) * height)
        canvas = np.full((2 * height, 2 * width, 3), PAD, np.uint8)
        parts = []
        for corner, i in enumerate([index, *(self.random.randrange(len(self.records)) for _ in range(3))]):
            image, labels = self.pull(i)
            image, ratio = self.fitted(image)
            h, w = image.shape[:2]
            x = centre_x if corner % 2 else centre_x - w
            y = centre_y if corner // 2 else centre_y - h
            x1, y1, x2, y2 = max(x, 0), max(y, 0), min(x + w, 2 * width), min(y + h, 2 * height)
            canvas[y1:y2, x1:x2] = image[y1 - y : y2 - y, x1 - x : x2 - x]
            labels[:, :4] = labels[:, :4] * ratio + (x, y, x, y)
            parts.append(labels)
        labels = np.concatenate(parts)
        labels[:, :4] = labels[:, :4].clip(0, (2 * width, 2 * height) * 2)
        policy = self.policy
        turn = cv2.getRotationMatrix2D((0, 0), uniform(-policy.degrees, policy.degrees), uniform(*policy.scale))
        shears = [math.tan(math.radians(uniform(-policy.shear, policy.shear))) for _ in range(2)]
        matrix = np.stack((turn[0] + shears[0] * turn[1], turn[1] + shears[1] * turn[0]))
        reach = policy.translate
        matrix[:, 2] = uniform(-reach, reach) * width, uniform(-reach, reach) * height
        image = cv2.warpAffine(canvas, matrix, (width, height), borderValue=(PAD, PAD, PAD))
        corners = np.ones((4 * len(labels), 3))
        corners[:, :2] = labels[:, [0, 1, 2, 3, 0, 3, 2, 1]].reshape(-1, 2)
        warped = (corners @ matrix.T).reshape(-1, 4, 2)
        if len(labels):
            low, high = warped.min(axis=1), warped.max(axis=1)
            labels[:, :4] = np.concatenate((low, high), axis=1).clip(0, (width, height) * 2)
        return image, labels

    def mixed(self, image: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return an image blended with another one."""
        height, width = self.size_hw
        scale, mirrored = self.random.uniform(*self.policy.mixup_scale), self.random.random() < 0.5
        index = self.random.randrange(len(self.records))
        while not len(self.labels[index]):
            index = self.random.randrange(len(self.records))
        other, more = self.pull(index)
        other, ratio = self.fitted(other)
        frame = np.ones((height, width, 3), np.uint8) * PAD
        frame[: other.shape[0], : other.shape[1]] = other
        frame = cv2.resize(frame, (int(width * scale), int(height * scale)))
        if mirrored:
            frame = frame[:, ::-1]
        h, w = frame.shape[:2]
        layer = np.zeros((max(h, height), max(w, width), 3), np.uint8)
        layer[:h, :w] = frame
        x = self.random.randrange(layer.shape[1] - width) if layer.shape[1] > width else 0
        y = self.random.randrange(layer.shape[0] - height) if layer.shape[0] > height else 0
        layer = layer[y : y + height, x : x + width]
        more[:, :4] = (more[:, :4] * ratio * scale).clip(0, (w, h) * 2)
        if mirrored:
            more[:, [0, 2]] = w - more[:, [2, 0]]
        more[:, :4] = (more[:, :4] - (x, y, x, y)).clip(0, (width, height) * 2)
        blended = 0.5 * image.astype(np.float32) + 0.5 * layer.astype(np.float32)
        return blended.astype(np.uint8), np.concatenate((labels, more))

    def finished(self, image: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return colours changed, mirrored, letterboxed, as float32 channels first."""
        kept_image, kept_labels = image.copy(), labels.copy()  # for the case that no box is left
        if self.random.random() < self.policy.hsv_prob:
            gains = [self.random.uniform(-g, g) * self.random.randint(0, 1) for g in self.policy.hsv_gains]
            shift = np.array(gains).astype(np.int16)
            hsv = cv2.cvtColor(image, cv2.COLOR_BGR2HSV).astype(np.int16)
            hsv[..., 0] = (hsv[..., 0] + shift[0]) % 180
            hsv[..., 1] = np.clip(hsv[..., 1] + shift[1], 0, 255)
            hsv[..., 2] = np.clip(hsv[..., 2] + shift[2], 0, 255)
            cv2.cvtColor(hsv.astype(np.uint8), cv2.COLOR_HSV2BGR, dst=image)
        if self.random.random() < self.policy.flip_prob:
            image = image[:, ::-1]
            labels[:, [0, 2]] = image.shape[1] - labels[:, [2, 0]]
        targets = self.targets(labels)
        if not len(targets):
            image, targets = kept_image, self.targets(kept_labels)
        boxed = np.ones((*self.size_hw, 3), np.uint8) * PAD
        inner, ratio = self.fitted(image)
        boxed[: inner.shape[0], : inner.shape[1]] = inner
        padded = np.zeros((120, 5), np.float32)
        padded[: len(targets)] = targets[:120]
        padded[:, 1:] *= ratio
        return np.ascontiguousarray(boxed.transpose(2, 0, 1), np.float32), padded

    def targets(self, labels: np.ndarray) -> np.ndarray:
        """Return class, centre and size of the boxes that are left."""
        low, high = labels[:, :2], labels[:, 2:4]
        targets = np.concatenate((labels[:, 4:], (low + high) / 2, high - low), axis=1)
        return targets[(targets[:, 3:] > 1).all(axis=1)]


def ours(records: Records, size_hw: tuple[int, int], policy: AugmentPolicy, tiles: TileCache) -> Callable[[], object]:
    """Return a function that makes the next sample, in the order of training."""
    dataset = DetectionDataset(records, size_hw, policy=policy, tiles=tiles)
    places: Iterator[tuple[int, int]] = (
        (epoch, int(index)) for epoch in itertools.count() for index in dataset.order(epoch)
    )
    return lambda: dataset.sample(*next(places))


def measure(records: Records, model: str, size_hw: tuple[int, int], rounds: int, folder: Path) -> None:
    policy = policy_for(model)
    large = records.select(np.arange(max(LARGE, len(records))) % len(records))
    ram = open_cache("ram", records, size_hw)
    disk = open_cache("disk", records, size_hw, folder=folder)
    for cache in (ram, disk):
        list(map_threads(cache.tile, len(records), workers=2))
    files, anywhere = FileTiles(large, size_hw), replace(policy, partner_window=None)
    plain = {cached: Original(records, size_hw, policy, cached=cached) for cached in (False, True)}
    order = itertools.cycle(np.random.default_rng(0).permutation(len(records)).tolist())
    makers: dict[str, Callable[[], object]] = {
        "original, no cache": lambda: plain[False].sample(next(order)),
        "original, RAM cache": lambda: plain[True].sample(next(order)),
        "boxwright, no cache": ours(large, size_hw, policy, TileCache(files)),
        "boxwright, no cache, partners from the whole set": ours(large, size_hw, anywhere, TileCache(files)),
        "boxwright, disk cache": ours(records, size_hw, policy, disk),
        "boxwright, RAM cache": ours(records, size_hw, policy, ram),
    }
    times: dict[str, list[float]] = {name: [] for name in makers}
    for _ in range(2 * (policy.partner_window or 0)):
        makers["boxwright, no cache"]()  # until the window of recent images is full, as it is but for the first seconds
    for maker in makers.values():
        maker()
    for _ in range(rounds):
        for name, maker in makers.items():
            start = perf_counter()
            for _ in range(PER_ROUND):
                maker()
            times[name].append((perf_counter() - start) / PER_ROUND * 1e3)
    middle = {name: float(np.median(values)) for name, values in times.items()}
    base, cached = middle["original, no cache"], middle["original, RAM cache"]
    print(f"\n{model} at {size_hw[0]} x {size_hw[1]}, {rounds * PER_ROUND} samples each")
    print(f"{'':50}{'ms':>8}{'x original':>14}{'x original, RAM':>18}")
    for name, value in middle.items():
        print(f"{name:50}{value:8.2f}{base / value:14.2f}{cached / value:18.2f}")
    print(f"RAM cache: {tile_bytes(records, size_hw).mean() / 1e6:.2f} MB an image, holds {len(ram)} of {len(records)}")
    dataset = DetectionDataset(records, size_hw, policy=replace(policy, multiscale=None), tiles=ram)
    for workers in (1, 2):
        print(f"loader, RAM cache, {workers} worker(s): {throughput(dataset, workers, rounds):.0f} samples a second")


def throughput(dataset: DetectionDataset, workers: int, batches: int) -> float:
    with Loader(dataset, batch_size=16, workers=workers, infinite=True) as loader:
        found = iter(loader)
        for _ in range(3):
            next(found)
        start = perf_counter()
        for _ in range(batches):
            next(found)
        return 16 * batches / (perf_counter() - start)


def resident_mb() -> float:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    return math.nan


def soak(records: Records, samples: int) -> None:
    """Load many samples with 2 workers and print how much memory the process holds."""
    large = records.select(np.arange(max(LARGE, len(records))) % len(records))
    dataset = DetectionDataset(large, (416, 416), policy=policy_for("yolox_tiny"))
    with Loader(dataset, batch_size=16, workers=2, infinite=True, max_boxes=120) as loader:
        step = max(samples // 16 // 10, 1)
        for number, _ in enumerate(loader, start=1):
            if number % step == 0:
                print(f"{number * 16:8d} samples {resident_mb():8.1f} MB", flush=True)
            if number * 16 >= samples:
                return


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="a data set; synthetic scenes by default")
    parser.add_argument("--rounds", type=int, default=8, help=f"rounds of {PER_ROUND} samples for each variant")
    parser.add_argument(
        "--soak", type=int, metavar="SAMPLES", help="load this many samples and print the memory instead"
    )
    options = parser.parse_args()
    cpu = read_cpu()
    print(f"{cpu.model}, {cpu.usable_cores} cores, {platform.system()}")
    print(f"OpenCV {cv2.__version__}, numpy {np.__version__}")
    with TemporaryDirectory() as folder:
        records = (
            read_records(options.data)
            if options.data
            else generate_scenes(Path(folder, "scenes"), images=400, seed=0, size_hw=(480, 640))
        )
        print(f"{len(records)} images, {len(records.boxes_xyxy)} boxes")
        if options.soak:
            soak(records, options.soak)
            return
        cv2.setNumThreads(1)  # what is compared is work, not how well OpenCV spreads it
        for model, size_hw in CASES:
            measure(records, model, size_hw, options.rounds, Path(folder, "cache"))


if __name__ == "__main__":
    main()
