"""Writing predictions to disk as they arrive: pictures, videos, JSON lines, CSV, COCO json, YOLO text.

Every writer appends; none keeps more than one frame in memory.
"""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TextIO

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError, check_choice
from boxwright.tasks.predict.inputs import Failure, Frame, is_utf8
from boxwright.tasks.predict.predictor import Prediction
from boxwright.vision.draw import draw_detections

FORMATS = ("images", "json", "csv", "coco", "yolo")


def to_record(item: Prediction | Failure) -> dict[str, Any]:
    """Return one prediction or failure as the plain dict of the JSON lines."""
    if isinstance(item, Failure):
        return {"source": item.source, "error": str(item.error)}
    record: dict[str, Any] = {"source": item.frame.source}
    if item.frame.index is not None:
        record["frame"] = item.frame.index
    record["size_hw"] = list(item.detections.size_hw)
    record["detections"] = item.detections.to_list()
    return record


class Outputs:
    """The writers of several formats behind one `write`; use it as a `with` block."""

    def __init__(self, folder: Path, formats: Iterable[str], category_ids: Sequence[int] = ()) -> None:
        formats = list(dict.fromkeys(formats))
        for name in formats:
            check_choice("format", name, FORMATS)
        if formats:
            try:
                folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UsageError(
                    f"{str(folder)!r} can't be the output folder: {error.strerror}. Choose another."
                ) from error
        if "yolo" in formats and any((folder / "labels").glob("*.txt")):
            # They may be somebody's annotations: of a set that is laid out as images/ and labels/.
            raise UsageError(f"{str(folder / 'labels')!r} holds label files already. Choose another --out.")
        names = _Names()
        self._writers = [_WRITERS[name](folder, names, category_ids) for name in formats]

    def write(self, prediction: Prediction) -> None:
        """Pass one prediction to every writer."""
        for writer in self._writers:
            writer.write(prediction)

    def __enter__(self) -> "Outputs":
        return self

    def __exit__(self, *_: object) -> None:
        for writer in self._writers:
            writer.close()


class _Names:
    """File names for sources: the source's stem, numbered if two sources share one."""

    def __init__(self) -> None:
        self._last = ("", "")
        self._used: set[str] = set()

    def stem(self, frame: Frame) -> str:
        if frame.source != self._last[0]:  # the frames of one source follow each other
            plain = Path(frame.source.rstrip("/")).stem if "://" not in frame.source else "stream"
            plain = plain or "image"
            name, number = plain, 1
            while name in self._used:
                number += 1
                name = f"{plain}_{number}"
            self._used.add(name)
            self._last = (frame.source, name)
        return self._last[1]


class _Writer:
    """One format; a subclass with a `file_name` writes to that file."""

    file_name: ClassVar[str] = ""

    def __init__(self, folder: Path, names: _Names, category_ids: Sequence[int]) -> None:
        self._folder, self._names, self._category_ids = folder, names, list(category_ids)
        if self.file_name:
            # Surrogates are bytes of file names that are not UTF-8; JSON escapes them.
            self._file: TextIO = (folder / self.file_name).open(
                "w", encoding="utf-8", errors="surrogateescape", newline=""
            )

    def write(self, prediction: Prediction) -> None:
        raise NotImplementedError

    def close(self) -> None:
        if self.file_name:
            self._file.close()


class _Pictures(_Writer):
    _video: Any = None
    _video_of = ""
    _video_hw = (0, 0)

    def write(self, prediction: Prediction) -> None:
        frame = prediction.frame
        picture = draw_detections(frame.image, prediction.detections)
        if frame.index is not None:
            self._write_frame(frame, picture)
            return
        path = self._own_path(frame, ".jpg")
        ok, data = cv2.imencode(".jpg", picture, [cv2.IMWRITE_JPEG_QUALITY, 92])
        if not ok:
            raise DataError(f"The picture {str(path)!r} of size {picture.shape[:2]!r} can't be encoded.")
        path.write_bytes(data.tobytes())

    def _own_path(self, frame: Frame, suffix: str) -> Path:
        """Return the path of a frame's result, which must not be its source."""
        path = self._folder / f"{self._names.stem(frame)}{suffix}"
        if path.exists() and os.path.exists(frame.source) and path.samefile(frame.source):
            raise UsageError(f"The result would overwrite its own source {frame.source!r}. Choose another --out.")
        return path

    def _write_frame(self, frame: Frame, picture: NDArray[np.uint8]) -> None:
        if frame.source != self._video_of:
            self.close()
            path = self._own_path(frame, ".mp4")
            if not is_utf8(str(path)):
                raise UsageError(f"OpenCV can't write the video {str(path)!r}: not valid UTF-8. Choose another --out.")
            self._video_hw = (picture.shape[0], picture.shape[1])
            fourcc = cv2.VideoWriter.fourcc(*"mp4v")
            self._video = cv2.VideoWriter(str(path), fourcc, frame.fps or 25.0, self._video_hw[::-1])
            if not self._video.isOpened():
                self._video = None
                raise DataError(f"The video {str(path)!r} can't be written. Check the folder and the free space.")
            self._video_of = frame.source
        if picture.shape[:2] != self._video_hw:  # a stream may change its size; a video file can't
            picture = cv2.resize(picture, self._video_hw[::-1])  # type: ignore[assignment]
        self._video.write(picture)

    def close(self) -> None:
        if self._video is not None:
            self._video.release()
        self._video, self._video_of = None, ""


class _JsonLines(_Writer):
    file_name = "predictions.jsonl"

    def write(self, prediction: Prediction) -> None:
        self._file.write(json.dumps(to_record(prediction)) + "\n")


class _Csv(_Writer):
    file_name = "predictions.csv"

    def __init__(self, folder: Path, names: _Names, category_ids: Sequence[int]) -> None:
        super().__init__(folder, names, category_ids)
        self._rows = csv.writer(self._file, lineterminator="\n")
        self._rows.writerow(["source", "frame", "class", "class_id", "score", "x1", "y1", "x2", "y2"])

    def write(self, prediction: Prediction) -> None:
        frame = prediction.frame
        for row in prediction.detections.to_list():
            index = "" if frame.index is None else frame.index
            self._rows.writerow([frame.source, index, row["class"], row["class_id"], row["score"], *row["box_xyxy"]])


class _YoloText(_Writer):
    def __init__(self, folder: Path, names: _Names, category_ids: Sequence[int]) -> None:
        super().__init__(folder / "labels", names, category_ids)
        self._folder.mkdir(exist_ok=True)

    def write(self, prediction: Prediction) -> None:
        frame = prediction.frame
        stem = self._names.stem(frame) if frame.index is None else f"{self._names.stem(frame)}_{frame.index:06d}"
        (self._folder / f"{stem}.txt").write_text(prediction.detections.to_yolo_txt(), encoding="utf-8")


class _Coco(_Writer):
    """One COCO json, written as it grows; the list of images waits in a second file until the end."""

    file_name = "predictions.coco.json"

    def __init__(self, folder: Path, names: _Names, category_ids: Sequence[int]) -> None:
        super().__init__(folder, names, category_ids)
        self._images_path = folder / ".images.coco.json"
        self._images: TextIO = self._images_path.open("w", encoding="utf-8")
        self._classes: tuple[str, ...] = ()
        self._count = self._annotations = self._last_number = 0
        self._given_ids: set[int] = set()
        self._file.write('{"annotations": [')

    def write(self, prediction: Prediction) -> None:
        frame, found = prediction.frame, prediction.detections
        self._classes = found.names
        image_id = self._image_id(frame)
        entry: dict[str, Any] = {"id": image_id, "file_name": frame.source}
        if frame.index is not None:
            entry["frame"] = frame.index
        entry |= {"height": found.size_hw[0], "width": found.size_hw[1]}
        self._images.write(("," if self._count else "") + "\n" + json.dumps(entry))
        self._count += 1
        for box in found.to_coco(image_id=image_id, category_ids=self._category_ids or None):
            self._annotations += 1
            box = {"id": self._annotations, **box, "area": round(box["bbox"][2] * box["bbox"][3], 2), "iscrowd": 0}
            self._file.write(("," if self._annotations > 1 else "") + "\n" + json.dumps(box))

    def _image_id(self, frame: Frame) -> int:
        # COCO's own files are named by their id; keeping it lets the result be scored against the annotations.
        stem = Path(frame.source).stem
        if frame.index is None and len(stem) == 12 and stem.isdecimal():
            own = int(stem)
            if own > self._last_number and own not in self._given_ids:
                self._given_ids.add(own)
                return own
        self._last_number += 1
        while self._last_number in self._given_ids:
            self._last_number += 1
        return self._last_number

    def close(self) -> None:
        ids = self._category_ids or range(1, len(self._classes) + 1)
        categories = [{"id": i, "name": n} for i, n in zip(ids, self._classes, strict=False)]
        self._images.close()
        self._file.write('],\n"images": [')
        with self._images_path.open(encoding="utf-8") as images:
            self._file.writelines(images)
        self._file.write('],\n"categories": ' + json.dumps(categories) + "}\n")
        self._file.close()
        self._images_path.unlink()


_WRITERS: dict[str, type[_Writer]] = {
    "images": _Pictures, "json": _JsonLines, "csv": _Csv, "coco": _Coco, "yolo": _YoloText,
}  # fmt: skip
