"""Writing predictions to disk as they arrive: pictures, videos, JSON lines, CSV, COCO json, YOLO text.

Every writer appends; none keeps more than one frame in memory.
"""

import csv
import json
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack, suppress
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
from numpy.typing import NDArray

from boxwright.core.errors import DataError, UsageError, check_choice
from boxwright.core.files import GrowingFile, naming, whole_file
from boxwright.core.text import csv_cell
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
    """The writers of several formats behind one `write`; use it as a `with` block.

    Lines are on disk when `write` returns. Pictures, videos and the COCO file appear whole or not at all. If an
    error or a signal ends the block, they hold what was predicted until then.
    """

    def __init__(
        self, folder: Path, formats: Iterable[str], category_ids: Sequence[int] = (), *, overwrite: bool = False
    ) -> None:
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
        if not overwrite:
            refuse_results(folder, formats)
        else:
            for pattern in [p for name in formats for p in _WRITERS[name].patterns if "*" not in p]:
                (folder / pattern).unlink(missing_ok=True)  # pictures and labels replace those of the same name
        names = _Names()
        self._writers = [_WRITERS[name](folder, names, category_ids) for name in formats]

    def write(self, prediction: Prediction) -> None:
        """Pass one prediction to every writer."""
        for writer in self._writers:
            writer.write(prediction)

    def __enter__(self) -> "Outputs":
        try:
            for writer in self._writers:
                writer.begin()
        except BaseException:  # signals too
            for writer in self._writers:
                writer.remove_drafts()
            raise
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with ExitStack() as stack:  # which closes the others even if one fails, or if a signal comes
            if error is not None:  # it takes precedence
                stack.enter_context(suppress(OSError, DataError))
            for writer in reversed(self._writers):
                stack.callback(writer.close)


def refuse_results(folder: Path, formats: Iterable[str]) -> None:
    """Check that no file of an earlier run would be replaced; label files may even be hand-made annotations.

    Raises:
        UsageError: the folder holds such files.
    """
    for name in formats:
        for pattern in _WRITERS[name].patterns if name in _WRITERS else ():
            found = [path for path in folder.glob(pattern) if not path.name.startswith(".")]
            if found:
                raise UsageError(
                    f"{str(folder)!r} holds results already, such as {found[0].relative_to(folder).as_posix()!r}. "
                    "Choose another --out, or replace them with --overwrite."
                )


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
    """One format; `patterns` are the files that it writes."""

    patterns: ClassVar[tuple[str, ...]] = ()

    def __init__(self, folder: Path, names: _Names, category_ids: Sequence[int]) -> None:
        self._folder, self._names, self._category_ids = folder, names, list(category_ids)

    def begin(self) -> None:
        """Create drafts."""

    def remove_drafts(self) -> None:
        """Remove drafts, whole or not."""

    def write(self, prediction: Prediction) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Finish what is open."""


class _Pictures(_Writer):
    patterns = ("*.jpg", "*.mp4")
    _video: Any = None
    _video_of = ""
    _video_hw = (0, 0)
    _video_path = Path()
    _video_draft: Path | None = None
    _video_frames = 0

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
        with whole_file(path, sync=False) as draft:
            draft.write_bytes(data.tobytes())

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
            self._video_path, self._video_frames = path, 0
            self._video_draft = path.with_name(f".{path.stem}.{os.getpid()}.tmp.mp4")
            fourcc = cv2.VideoWriter.fourcc(*"mp4v")
            self._video = cv2.VideoWriter(str(self._video_draft), fourcc, frame.fps or 25.0, self._video_hw[::-1])
            self._video_of = frame.source
            if not self._video.isOpened():
                self.close()
        if picture.shape[:2] != self._video_hw:  # a stream may change its size; a video file can't
            picture = cv2.resize(picture, self._video_hw[::-1])  # type: ignore[assignment]
        self._video.write(picture)
        self._video_frames += 1

    def close(self) -> None:
        """Finish the video. OpenCV does not report failed writes, so its frames are counted."""
        video, draft = self._video, self._video_draft
        if draft is None:
            return
        self._video, self._video_draft, self._video_of = None, None, ""
        try:
            if video is not None:  # None if a signal came while OpenCV created the file
                video.release()
            written = cv2.VideoCapture(str(draft))
            whole = self._video_frames and written.get(cv2.CAP_PROP_FRAME_COUNT) >= self._video_frames
            written.release()
            if whole:
                draft.replace(self._video_path)
                return
        finally:
            draft.unlink(missing_ok=True)
        raise DataError(
            f"The video {str(self._video_path)!r} can't be written. Check the folder and the free space, or leave out "
            "images with --save."
        )


class _JsonLines(_Writer):
    patterns = ("predictions.jsonl",)

    def __init__(self, folder: Path, names: _Names, category_ids: Sequence[int]) -> None:
        super().__init__(folder, names, category_ids)
        self._file = GrowingFile(folder / self.patterns[0])

    def write(self, prediction: Prediction) -> None:
        self._file.add(json.dumps(to_record(prediction), allow_nan=False) + "\n")

    def close(self) -> None:
        self._file.close()


class _Csv(_Writer):
    """One row per box. Names that a spreadsheet would evaluate get a leading apostrophe."""

    patterns = ("predictions.csv",)

    def __init__(self, folder: Path, names: _Names, category_ids: Sequence[int]) -> None:
        super().__init__(folder, names, category_ids)
        self._file = GrowingFile(folder / self.patterns[0])
        self._add([["source", "frame", "class", "class_id", "score", "x1", "y1", "x2", "y2"]])

    def write(self, prediction: Prediction) -> None:
        source, index = csv_cell(prediction.frame.source), prediction.frame.index
        self._add(
            [source, "" if index is None else index, csv_cell(row["class"]), row["class_id"], row["score"],
             *row["box_xyxy"]]
            for row in prediction.detections.to_list()
        )  # fmt: skip

    def _add(self, rows: Iterable[Sequence[Any]]) -> None:
        text = StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        self._file.add(text.getvalue())

    def close(self) -> None:
        self._file.close()


class _YoloText(_Writer):
    patterns = ("labels/*.txt",)

    def __init__(self, folder: Path, names: _Names, category_ids: Sequence[int]) -> None:
        super().__init__(folder / "labels", names, category_ids)
        self._folder.mkdir(exist_ok=True)

    def write(self, prediction: Prediction) -> None:
        frame = prediction.frame
        stem = self._names.stem(frame) if frame.index is None else f"{self._names.stem(frame)}_{frame.index:06d}"
        with whole_file(self._folder / f"{stem}.txt", sync=False) as draft:
            draft.write_text(prediction.detections.to_yolo_txt(), encoding="utf-8")


class _Coco(_Writer):
    """One COCO json, written as it grows; the list of images waits in a second file until the end."""

    patterns = ("predictions.coco.json",)

    def __init__(self, folder: Path, names: _Names, category_ids: Sequence[int]) -> None:
        super().__init__(folder, names, category_ids)
        self._path = folder / self.patterns[0]
        self._drafts = [folder / f".{part}.{os.getpid()}.coco.json" for part in ("predictions", "images")]
        self._classes: tuple[str, ...] = ()
        self._count = self._annotations = self._last_number = 0
        self._given_ids: set[int] = set()
        self._files: list[GrowingFile] = []

    def begin(self) -> None:
        self.remove_drafts()  # a killed program of the same number may have left one
        for draft in self._drafts:
            self._files.append(GrowingFile(draft, self._path))
        self._boxes, self._images = self._files
        self._boxes.add('{"annotations": [')

    def remove_drafts(self) -> None:
        for file in self._files:
            file.close()
        for draft in self._drafts:
            draft.unlink(missing_ok=True)

    def write(self, prediction: Prediction) -> None:
        frame, found = prediction.frame, prediction.detections
        self._classes = found.names
        image_id = self._image_id(frame)
        entry: dict[str, Any] = {"id": image_id, "file_name": frame.source}
        if frame.index is not None:
            entry["frame"] = frame.index
        entry |= {"height": found.size_hw[0], "width": found.size_hw[1]}
        lines = []
        for box in found.to_coco(image_id=image_id, category_ids=self._category_ids or None):
            self._annotations += 1
            box = {"id": self._annotations, **box, "area": round(box["bbox"][2] * box["bbox"][3], 2), "iscrowd": 0}
            lines.append(("," if self._annotations > 1 else "") + "\n" + json.dumps(box, allow_nan=False))
        self._boxes.add("".join(lines))
        self._images.add(("," if self._count else "") + "\n" + json.dumps(entry))
        self._count += 1

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
        boxes, images = self._drafts
        try:
            with naming(self._path, boxes):
                self._boxes.add('],\n"images": [')
                with images.open(encoding="utf-8") as file:
                    while part := file.read(1 << 20):
                        self._boxes.add(part)
                self._boxes.add('],\n"categories": ' + json.dumps(categories) + "}\n")
                boxes.replace(self._path)
        finally:
            self.remove_drafts()


_WRITERS: dict[str, type[_Writer]] = {
    "images": _Pictures, "json": _JsonLines, "csv": _Csv, "coco": _Coco, "yolo": _YoloText,
}  # fmt: skip
