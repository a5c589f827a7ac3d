"""One xml of a Pascal VOC set: `parse_voc_xml` and `format_voc_xml`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import numpy as np

from boxwright.core.errors import DataError
from boxwright.core.files import read_bytes
from boxwright.data.records import Records

_MOST_BYTES = 1 << 28
_CORNERS = ("xmin", "ymin", "xmax", "ymax")


class VocObject(NamedTuple):
    """One box of an xml."""

    name: str
    box_xyxy: tuple[float, ...]
    crowd: bool


@dataclass(slots=True, kw_only=True)
class VocXml:
    """The content of one xml, with a sentence in `wrong` for each thing in it that can't be used."""

    file: Path
    filename: str = ""
    size_hw: tuple[int, int] = (0, 0)
    objects: list[VocObject] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def parse_voc_xml(file: Path) -> VocXml:
    """Return the content of an xml file; broken files and objects become sentences in `wrong`."""
    found = VocXml(file=file)
    try:
        tree = ElementTree.fromstring(read_bytes(file, max_bytes=_MOST_BYTES))
    except OSError as error:
        found.wrong.append(f"{str(file)!r} can't be read: {error.strerror}.")
        return found
    except (ElementTree.ParseError, ValueError, LookupError) as error:  # LookupError: an unknown encoding
        found.wrong.append(f"{str(file)!r} is not valid xml: {error}.")
        return found
    found.filename = _text(tree, "filename")
    height, width = _number(_text(tree, "size/height")), _number(_text(tree, "size/width"))
    if height and width and 0 < min(height, width) <= max(height, width) < 2**31:
        found.size_hw = int(height), int(width)
    for number, thing in enumerate(tree.findall("object"), start=1):
        name = _text(thing, "name")
        texts = [_text(thing, f"bndbox/{corner}") for corner in _CORNERS]
        box = tuple(corner for corner in map(_number, texts) if corner is not None)
        if not name:
            found.wrong.append(f"{str(file)!r}: object {number} has no name.")
        elif len(box) < 4:
            found.wrong.append(
                f"{str(file)!r}: object {number} ({name!r}) has the corners {texts!r} where 4 finite numbers "
                f"({', '.join(_CORNERS)}) should be."
            )
        else:
            found.objects.append(VocObject(name, box, (_number(_text(thing, "iscrowd")) or 0) > 0))
    return found


def format_voc_xml(records: Records, i: int, filename: str) -> str:
    """Return the xml of image i; numbers are as short as they can be and still give the same float32."""
    height, width = records.size_hw(i)
    lines = ["<annotation>", f"  <filename>{escape(filename)}</filename>"]
    if height:
        lines.append(f"  <size><width>{width}</width><height>{height}</height><depth>3</depth></size>")
    names: Sequence[str] = [records.names[class_id] for class_id in records.class_ids_of(i).tolist()]
    for box, name, crowd in zip(records.boxes(i), names, records.crowd_of(i).tolist(), strict=True):
        corners = (
            f"<{corner}>{np.format_float_positional(value, trim='-')}</{corner}>"
            for corner, value in zip(_CORNERS, box, strict=True)
        )
        lines += [
            "  <object>",
            f"    <name>{escape(name)}</name>",
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
    # The bound leaves room for areas in float32; NaN fails it too.
    return value if abs(value) < 1e12 else None
