"""The official weights: their names, their files, and what is known about them. No torch is needed."""

from dataclasses import dataclass
from typing import Literal, get_args

from boxwright.core.errors import check_choice

URL = "https://github.com/Megvii-BaseDetection/YOLOX/releases/download/0.1.1rc0"
"""The folder of the official release."""

Format = Literal["pth", "onnx"]
"""`pth` trains, and is converted; `onnx` runs without PyTorch."""

FORMATS: tuple[Format, ...] = get_args(Format)

# The release calls this model by its backbone, and people call it both.
_ALIASES = {"yolox_darknet": "yolov3", "yolox_darknet53": "yolov3", "darknet53": "yolov3"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One file of the release.

    Attributes:
        model: the model's name.
        format: the file's format.
        file: its name in the release.
        parameters: of the network after batch-norm is folded into the convolutions, as in an ONNX file.
        size_bytes: its size, if known.
        sha256: its digest, if known. Independent public records of downloads of this file agree on it.
    """

    model: str
    format: Format
    file: str
    parameters: int
    size_bytes: int | None = None
    sha256: str | None = None

    @property
    def stored_name(self) -> str:
        """The file's name in the cache folder, where models are found by name."""
        return f"{self.model}.{self.format}"


_PARAMETERS = {
    "yolox_nano": 904_463, "yolox_tiny": 5_047_191, "yolox_s": 8_956_703, "yolox_m": 25_304_847,
    "yolox_l": 54_174_271, "yolox_x": 99_020_975, "yolov3": 63_695_903,
}  # fmt: skip

_KNOWN: dict[str, tuple[int | None, str]] = {
    "yolox_nano.pth": (None, "cd28f55fbbc1829f99d9ac9b38a16d259a22889739c8728ea877610201feff7b"),
    "yolox_tiny.pth": (40_755_013, "9de513de589ac98bb92d3bca53b5af7b9acfa9b0bacb831f7999d0f7afaee8f0"),
    "yolox_s.pth": (72_089_125, "f55ded7181e1b0c13285c56e7790b8f0e8f8db590fe4edb37f0b7f345c913a30"),
    "yolox_m.pth": (203_114_461, "60076992b32da82951c90cfa7bd6ab70eba9eda243e08b940a396f60ac2d19b6"),
    "yolox_l.pth": (None, "1e6b7fa6240375370b2a8a8eab9066b3cdd43fd1d0bfa8d2027fd3a51def2917"),
    "yolox_x.pth": (793_463_373, "5652330b6ae860043f091b8f550a60c10e1129f416edfdb65c259be6caf355cf"),
    "yolox_nano.onnx": (3_659_407, "c789161ed43c8269fcd4e67c67eeeb4e80c622da2eb296a20bc6007bd18a0b7d"),
    "yolox_tiny.onnx": (20_219_662, "427cc366d34e27ff7a03e2899b5e3671425c262ea2291f88bb942bc1cc70b0f7"),
    "yolox_s.onnx": (35_858_002, "c5c2d13e59ae883e6af3b45daea64af4833a4951c92d116ec270d9ddbe998063"),
}


def _release(model: str, format: Format) -> Release:
    file = f"{'yolox_darknet' if model == 'yolov3' else model}.{format}"
    size_bytes, sha256 = _KNOWN.get(file, (None, None))
    return Release(
        model=model,
        format=format,
        file=file,
        parameters=_PARAMETERS[model],
        size_bytes=size_bytes,
        sha256=sha256,
    )


RELEASES = tuple(_release(model, format) for model in _PARAMETERS for format in FORMATS)
"""All files, by model."""


def find_release(model: str, format: str) -> Release:
    """Return the file of a model in a format.

    Raises:
        UsageError: there is no such model or format.

    Example:
        >>> find_release("yolox-darknet53", "onnx").file
        'yolox_darknet.onnx'
    """
    name = model.lower().replace("-", "_")
    name = _ALIASES.get(name, name)
    check_choice("model", name, tuple(_PARAMETERS))
    check_choice("format", format, FORMATS)
    return next(one for one in RELEASES if one.model == name and one.format == format)


def find_file(name: str) -> Release | None:
    """Return the release with this file name, its own or the one that it is stored under."""
    return next((one for one in RELEASES if name in (one.file, one.stored_name)), None)
