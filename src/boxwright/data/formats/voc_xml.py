"""One xml of a Pascal VOC set: `parse_voc_xml` and `format_voc_xml`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np

from boxwright.core.errors import DataError
from boxwright.data.records import ImageRecord

_CORNERS = ("xmin", "ymin", "xmax", "ymax")
# Leaves room for areas in float32.
_LARGEST = 1e12


@dataclass(frozen=True, slots=True, kw_only=True)
class VocObject:
    """One box of an xml."""

    name: str
    box_xyxy: tuple[float, ...]
    difficult: bool = False
    crowd: bool = False


@dataclass(slots=True, kw_only=True)
class VocXml:
    """What one xml says, with a sentence in `wrong` for each thing in it that can't be used."""

    file: Path
    filename: str = ""
    size_hw: tuple[int, int] = (0, 0)
    objects: list[VocObject] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def parse_voc_xml(file: Path) -> VocXml:
    """Return what an xml file says; broken files and objects become sentences in `wrong`."""
    found = VocXml(file=file)
    try:
        tree = ElementTree.fromstring(file.read_bytes())
    except OSError as error:
        found.wrong.append(f"{str(file)!r} can't be read: {error.strerror}.")
        return found
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an encoding nobody knows
        found.wrong.append(f"{str(file)!r} is not valid xml: {error}.")
        return found
    found.filename = _text(tree, "filename")
    height, width = _number(_text(tree, "size/height")), _number(_text(tree, "size/width"))
    if height and width and 0 < min(height, width) <= max(height, width) < 2**31:
        found.size_hw = int(height), int(width)
    for number, thing in enumerate(tree.findall("object"), start=1):
        name = _text(thing, "name")
        corners = [_number(_text(thing, f"bndbox/{corner}")) for corner in _CORNERS]
        box = tuple(c for c in corners if c is not None)
        if not name:
            found.wrong.append(f"{str(file)!r}: object {number} has no name.")
        elif len(box) < 4:
            texts = [_text(thing, f"bndbox/{corner}") for corner in _CORNERS]
            found.wrong.append(
                f"{str(file)!r}: object {number} ({name!r}) has the corners {texts!r} where 4 finite numbers "
                f"({', '.join(_CORNERS)}) should be."
            )
        else:
            marks = {key: _number(_text(thing, key)) or 0 for key in ("difficult", "iscrowd")}
            found.objects.append(
                VocObject(name=name, box_xyxy=box, difficult=marks["difficult"] > 0, crowd=marks["iscrowd"] > 0)
            )
    return found


def format_voc_xml(image: ImageRecord, filename: str, names: Sequence[str]) -> str:
    """Return the xml of one image; numbers are as short as they can be and still give the same float32."""
    height, width = image.size_hw
    lines = ["<annotation>", f"  <filename>{escape(filename)}</filename>"]
    if height:
        lines.append(f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>")
    for box, class_id, crowd in zip(image.boxes_xyxy, image.class_ids.tolist(), image.crowd.tolist(), strict=True):
        corners = (
            f"<{corner}>{np.format_float_positional(value, trim='-')}</{corner}>"
            for corner, value in zip(_CORNERS, box, strict=True)
        )
        lines += [
            "  <object>",
            f"    <name>{escape(names[class_id])}</name>",
            # Readers that don't know crowds leave difficult objects out of the score.
            f"    <difficult>{int(crowd)}</difficult>",
            *(["    <iscrowd>1</iscrowd>"] if crowd else []),
            f"    <bndbox>{''.join(corners)}</bndbox>",
            "  </object>",
        ]
    text = "\n".join([*lines, "</annotation>", ""])
    try:
        ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise DataError(f"The labels of {filename!r} can't be written as xml: {error}. Rename the class.") from error
    return text


def _text(tree: ElementTree.Element, path: str) -> str:
    return (tree.findtext(path) or "").strip()


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and abs(value) < _LARGEST else None
