import pickle
from pathlib import Path

import cv2
import numpy as np
import pytest

from boxwright.core.errors import UsageError
from boxwright.vision.datasets import ImageFolder
from boxwright.vision.datasets.folder import CachedLoader


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cat").mkdir()
    for i in range(3):
        cv2.imwrite(str(tmp_path / "cat" / f"{i}.png"), np.full((4, 5, 3), i, np.uint8))
    return tmp_path


def test_a_second_pass_decodes_nothing_and_gives_the_same(folder: Path) -> None:
    plain, cached = ImageFolder(folder), ImageFolder(folder, cache_bytes=1000)
    first = [image for image, _ in cached]
    for file in (folder / "cat").iterdir():
        file.unlink()
    second = [image for image, _ in cached]
    assert len(plain) == 3
    for a, b in zip(first, second, strict=True):
        assert np.array_equal(a, b)


def test_writing_into_an_image_does_not_change_the_kept_one(folder: Path) -> None:
    cached = ImageFolder(folder, cache_bytes=1000)
    for _ in range(2):
        image, _ = cached[1]
        assert image.max() == 1
        image[:] = 200


def test_the_limit_holds() -> None:
    calls: list[str] = []

    def load(path: str) -> np.ndarray:
        calls.append(path)
        return np.zeros(60, np.uint8)

    loader = CachedLoader(load, 100)
    for path in ("a", "b", "a", "b"):
        loader(path)
    assert calls == ["a", "b", "b"], "only the first fits"


def test_a_worker_process_starts_with_an_empty_cache_of_the_same_limit(folder: Path) -> None:
    cached = ImageFolder(folder, cache_bytes=1000)
    whole = len(pickle.dumps(cached))
    for item in cached:
        assert item[1] == 0
    assert len(pickle.dumps(cached)) == whole
    assert pickle.loads(pickle.dumps(cached))[2][0].max() == 2


def test_a_negative_limit_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="keeps nothing"):
        ImageFolder(folder, cache_bytes=-5)
