from pathlib import Path

import cv2
import numpy as np

from boxwright.data.header import read_sizes_hw


def test_sizes_come_in_order_and_unreadable_files_have_none(tmp_path: Path) -> None:
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    data = cv2.imencode(".png", np.zeros((40, 60, 3), np.uint8))[1].tobytes()
    good.write_bytes(data)
    bad.write_bytes(data[:50])
    assert list(read_sizes_hw([bad, good, tmp_path / "none.jpg"])) == [None, (40, 60), None]
