"""`DetectionDataset`: augmented samples of a set."""

import threading
from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.random import Generator, Philox
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError
from boxwright.core.log import get_logger
from boxwright.data import augment
from boxwright.data.augment import Image, Rows, Scratch
from boxwright.data.cache import TileCache
from boxwright.data.mosaic import CORNERS, draw_mosaic, place_rows, render_mosaic, warp_rows
from boxwright.data.policy import AugmentPolicy
from boxwright.data.records import Records
from boxwright.data.shards import shard_starts, shuffle_shards
from boxwright.data.tile import FileTiles, Tile
from boxwright.vision.letterbox import fit_hw, paste

_log = get_logger(__name__)

_WORD = 1 << 64


class Purpose(IntEnum):
    """What a stream of random numbers is for; no two uses share one."""

    SAMPLE = 0
    ORDER = 1
    SIZE = 2


def stream(seed: int, purpose: Purpose, epoch: int, index: int = 0) -> Generator:
    """Return a generator that is the same for the same arguments, in any process and any order.

    Philox counts in 256 bits. Purpose, epoch and index fill the upper three quarters, so that two streams of a seed
    can't overlap before 2^64 blocks.

    Raises:
        UsageError: a number is negative or has more than 64 bits.

    Example:
        >>> bool(stream(7, Purpose.SAMPLE, 0, 3).random() == stream(7, Purpose.SAMPLE, 0, 3).random())
        True
    """
    for name, value in (("seed", seed), ("epoch", epoch), ("index", index)):
        if not 0 <= value < _WORD:
            raise UsageError(f"{name}={value!r} can't be used for random numbers. Use 0 to 2**64 - 1.")
    counter = np.array([0, purpose, epoch, index], np.uint64)
    return Generator(Philox(key=seed, counter=counter))


class Sample(NamedTuple):
    """One image for the network, with its boxes.

    Attributes:
        image: uint8 (H, W, 3), BGR.
        targets: class, centre x, centre y, width, height in pixels of `image`; float32 (N, 5).
    """

    image: Image
    targets: Rows


class DetectionDataset:
    """The training samples of a set. A sample depends on (seed, epoch, index) and its size, not on order or cache.

    An image that can't be read never stops training: it is logged, stored in `bad_images`, and replaced by the next
    readable one of the set.

    Images in shards are shuffled so that few shards are needed at a time, and a mosaic takes its images from them.

    Args:
        records: the images and boxes. Crowds are not targets.
        size_hw: the network's input size, multiples of 32.
        policy: how to augment.
        seed: of all random numbers.
        tiles: a cache made for the same records and size; by default files are read, and only the last few kept.

    Raises:
        UsageError: the size is not a multiple of 32, or `tiles` was made for other records or another size.
        DataError: the set is empty.
    """

    def __init__(
        self,
        records: Records,
        size_hw: tuple[int, int],
        *,
        policy: AugmentPolicy,
        seed: int = 0,
        tiles: TileCache | None = None,
    ) -> None:
        if not len(records):
            raise DataError("The set has no image: there is nothing to load.")
        if min(size_hw) < 32 or size_hw[0] % 32 or size_hw[1] % 32:
            raise UsageError(f"size_hw={size_hw!r}: height and width must be multiples of 32.")
        tiles = TileCache(FileTiles(records, size_hw)) if tiles is None else tiles
        files = tiles.files
        if files.records is not records or files.size_hw != size_hw:
            raise UsageError(
                f"The cache was made for {len(files.records)} images at {files.size_hw!r}, "
                f"not for these {len(records)} at {size_hw!r}. Make it from the same records and size."
            )
        self.records = records
        self.size_hw = size_hw
        self.policy = policy
        self.seed = seed
        self.tiles = tiles
        self.bad_images: dict[int, str] = {}
        self._rows, self._offsets = _training_rows(records)
        self._labelled = np.flatnonzero(np.diff(self._offsets))
        self._shards = shard_starts(records)
        self._orders: dict[int, tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]] = {}
        self._scratch = Scratch()
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.records)

    @property
    def in_shards(self) -> bool:
        """Whether the images are in shards."""
        return self._shards is not None

    def with_policy(self, policy: AugmentPolicy) -> "DetectionDataset":
        """Return the same set with another policy, for the next phase of a run; images and cache are shared."""
        other = DetectionDataset(self.records, self.size_hw, policy=policy, seed=self.seed, tiles=self.tiles)
        other.bad_images, other._lock = self.bad_images, self._lock
        return other

    def note_bad(self, index: int, reason: str) -> None:
        """Store an image that can't be read in `bad_images`, and log it once."""
        with self._lock:
            if index in self.bad_images:
                return
            self.bad_images[index] = reason
        _log.warning("%s Another image takes its place. (%d so far)", reason, len(self.bad_images))

    def sample(
        self, epoch: int, index: int, *, size_hw: tuple[int, int] | None = None, out: Image | None = None
    ) -> Sample:
        """Return one sample.

        Args:
            epoch: counts from 0.
            index: the image, from 0.
            size_hw: the size of a new image, by default the input size.
            out: an array (H, W, 3) to write to instead, such as a row of a batch.

        Raises:
            DataError: no image of the set can be read.
        """
        if not 0 <= index < len(self):
            raise IndexError(f"image {index} of {len(self)}")
        if out is None:
            out = np.empty((*(size_hw or self.size_hw), 3), np.uint8)
        rng = stream(self.seed, Purpose.SAMPLE, epoch, index)
        # Every choice is drawn, needed or not, so that later draws do not depend on it.
        u_mosaic, u_flip = rng.random(2).tolist()
        shift = augment.draw_hsv_shift(rng, self.policy)
        joined = u_mosaic < self.policy.mosaic_prob
        if joined:
            inner, rows, width = out, self._mosaic(rng, epoch, index, out), float(out.shape[1])
        else:
            inner, rows, width = self._single(index, out)
        # Only where the image is: padding stays grey, and at the right.
        augment.shift_hsv(inner, shift, self._scratch)
        if u_flip < self.policy.flip_prob:
            augment.flip(inner, rows, width)
        return Sample(
            out, augment.to_targets(rows if joined else augment.keep_visible(rows, (out.shape[0], out.shape[1])))
        )

    def _single(self, index: int, out: Image) -> tuple[Image, Rows, float]:
        """Letterbox one image into `out` and return the part with the image, its boxes, and its exact width."""
        index, tile = self._readable(index)
        out_hw = (out.shape[0], out.shape[1])
        inner, ratio = paste(tile.pixels, fit_hw(tile.size_hw, out_hw), out), tile.ratio(out_hw)
        rows = self._rows_of(index, tile)
        rows[:, :4] *= ratio
        return inner, rows, tile.size_hw[1] * ratio

    def _mosaic(self, rng: Generator, epoch: int, index: int, out: Image) -> Rows:
        """Write a mosaic of four images, perhaps blended with a fifth, to `out` and return its boxes."""
        mosaic = draw_mosaic(rng, self.policy, self.size_hw)
        mixup = augment.draw_mixup(rng, self.policy)
        u_mixup, *others = rng.random(len(CORNERS)).tolist()
        indices = [index, *self._partners(epoch, index, others)]
        found = {corner: self._readable(indices[corner]) for corner in mosaic.visible_corners()}
        render_mosaic(mosaic, {corner: tile for corner, (_, tile) in found.items()}, out, self._scratch)
        on_canvas = [place_rows(mosaic, corner, tile, self._rows_of(i, tile)) for corner, (i, tile) in found.items()]
        rows = warp_rows(mosaic, np.concatenate([self._rows[:0], *on_canvas]), (out.shape[0], out.shape[1]))
        if u_mixup < self.policy.mixup_prob and len(self._labelled):
            partner, tile = self._readable(self._labelled_partner(rng, epoch, index))
            rows = np.concatenate((rows, augment.mix(out, tile, self._rows_of(partner, tile), mixup, self._scratch)))
        return rows

    def _partners(self, epoch: int, index: int, draws: Sequence[float]) -> list[int]:
        """Return an image for each number in [0, 1)."""
        window = self.policy.partner_window
        if window is None and self._shards is None:
            return [int(u * len(self)) for u in draws]
        near, here = self._near(epoch, index)
        window = min(window or len(near), len(near))
        return [int(near[here - 1 - int(u * window)]) for u in draws]

    def _labelled_partner(self, rng: Generator, epoch: int, index: int) -> int:
        """Return an image with boxes: a partner if one of the first eight has any, else any image."""
        *draws, u_any = rng.random(9).tolist()
        for partner in self._partners(epoch, index, draws):
            if self._offsets[partner + 1] > self._offsets[partner]:
                return partner
        labelled = self._labelled
        if self._shards is not None:
            near, _ = self._near(epoch, index)
            found = near[self._offsets[near + 1] > self._offsets[near]]
            labelled = found if len(found) else labelled
        return int(labelled[int(u_any * len(labelled))])

    def _near(self, epoch: int, index: int) -> tuple[NDArray[np.int64], int]:
        """Return the images that may share a mosaic with this one, in the epoch's order, and where it stands."""
        order, place, groups = self._shuffled(epoch)
        here = int(place[index])
        group = int(np.searchsorted(groups, here, side="right")) - 1
        first = int(groups[group])
        return order[first : int(groups[group + 1])], here - first

    def order(self, epoch: int) -> NDArray[np.int64]:
        """Return the images in the shuffled order of an epoch."""
        return self._shuffled(epoch)[0]

    def _shuffled(self, epoch: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the order of an epoch, where each image stands in it, and where the groups of shards begin."""
        known = self._orders.get(epoch)
        if known is None:
            rng = partial(stream, self.seed, Purpose.ORDER, epoch)
            if self._shards is None:
                order, groups = rng().permutation(len(self)), np.array([0, len(self)])
            else:
                order, groups = shuffle_shards(self._shards, rng)
            known = order, np.argsort(order), groups
            # Two epochs, because the next one's first samples are made while this one's last are in use.
            self._orders = {e: kept for e, kept in self._orders.items() if abs(e - epoch) == 1} | {epoch: known}
        return known

    def _rows_of(self, index: int, tile: Tile) -> Rows:
        """Return a copy of the boxes of an image, cut to it."""
        rows = self._rows[self._offsets[index] : self._offsets[index + 1]].copy()
        augment.clip_to(rows[:, :4], tile.size_hw[::-1])
        return rows

    def _readable(self, index: int) -> tuple[int, Tile]:
        """Return the tile of an image or, when it can't be read, of the next one that can."""
        for i in range(index, index + len(self)):
            candidate = i % len(self)
            if candidate in self.bad_images:
                continue
            try:
                return candidate, self.tiles.tile(candidate)
            except DataError as error:
                self.note_bad(candidate, str(error))
        raise DataError(
            f"None of the {len(self)} images can be read. The first: {next(iter(self.bad_images.values()))}"
        )


def _training_rows(records: Records) -> tuple[Rows, NDArray[np.int64]]:
    """Return the boxes that count, with their class, and where those of each image begin."""
    boxes = records.boxes_xyxy
    keep = ~records.crowd & (boxes[:, 2] > boxes[:, 0]) & (boxes[:, 3] > boxes[:, 1])
    rows = np.column_stack((boxes, records.class_ids))[keep].astype(np.float32)
    before = np.concatenate(([0], np.cumsum(keep)))
    return rows, before[records.offsets].astype(np.int64)
