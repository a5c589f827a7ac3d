"""Mutates labelled sets: annotations within their structure, pictures, shards, and files at their paths."""

import json
import os
import shutil
import socket
from pathlib import Path
from random import Random
from xml.etree import ElementTree

import yaml
from fuzz.blobs import other_form, spoil, spoil_tar
from fuzz.pictures import PICTURES, spoil_picture
from fuzz.values import NUMBERS, odd_text, odd_value, rewrite_tree, to_json

FILES = ("coco", "voc", "yolo")
SHARDED = ("webdataset", "parquet")
FORMATS = (*FILES, *SHARDED)
_SHARDS = (".tar", ".parquet")


def spoil_set(rng: Random, seed: Path, target: Path, outside: Path) -> None:
    """Write a spoilt copy of a set; `seed` is one of the folders of `FORMATS`."""
    shutil.copytree(seed, target)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        files = [path for path in sorted(target.rglob("*")) if path.is_file() and not path.is_symlink()]
        if not files:
            return
        labels = [path for path in files if path.suffix not in (*PICTURES, *_SHARDS)]
        shards = [path for path in files if path.suffix in _SHARDS]
        chance = rng.random()
        if shards and chance < 0.5:
            _spoil_shard(rng, rng.choice(shards), outside)
        elif chance < 0.7 and labels:
            _spoil_labels(rng, rng.choice(labels), target, outside)
        elif chance < 0.85:
            path = rng.choice(files)
            path.write_bytes(spoil_picture(rng, path))
        else:
            put_something_else(rng, rng.choice(files))


def put_something_else(rng: Random, path: Path) -> None:
    """Replace a file by something that is not a regular file, or remove it."""
    path.unlink()
    action = rng.randrange(9)
    if action == 0:
        os.mkfifo(path)
    elif action == 1:
        path.symlink_to("/dev/zero")
    elif action == 2:
        path.symlink_to(path.name)
    elif action == 3:
        path.mkdir()
    elif action == 4:
        path.symlink_to("missing.file")
    elif action == 5:
        with socket.socket(socket.AF_UNIX) as one:
            here = Path.cwd()
            os.chdir(path.parent)  # a socket's path is at most 108 bytes long
            one.bind(path.name)
            os.chdir(here)
    elif action == 6:
        path.write_bytes(b"")
        path.chmod(0)
    elif action == 7:
        path.symlink_to(path.parent)


def _spoil_labels(rng: Random, path: Path, folder: Path, outside: Path) -> None:
    data = path.read_bytes()
    if rng.random() < 0.08:
        path.write_bytes(rng.choice((spoil, other_form))(rng, data))
        return
    try:
        if path.suffix == ".json":
            path.write_bytes(_spoil_coco(rng, data, outside))
        elif path.suffix == ".xml":
            path.write_bytes(_spoil_xml(rng, data, outside))
        elif path.suffix in (".yaml", ".yml"):
            path.write_bytes(_spoil_yaml(rng, data, outside))
        else:
            path.write_bytes(_spoil_lines(rng, data, outside))
    except (ValueError, RecursionError, ElementTree.ParseError, yaml.YAMLError, TypeError, AttributeError, KeyError):
        path.write_bytes(spoil(rng, data))  # it was spoilt before


def _spoil_shard(rng: Random, path: Path, outside: Path) -> None:
    data = path.read_bytes()
    if rng.random() < 0.1:
        path.write_bytes(b"")
        address = path.with_name(rng.choice(("shards.url", f"{path.parent.name}.url", f"{path.name}.url")))
        address.write_text(f"file://{outside}\n")
        (outside / path.name).write_bytes(data)
    elif path.suffix == ".tar" and rng.random() < 0.8:
        path.write_bytes(spoil_tar(rng, data, _spoil_member))
    else:
        path.write_bytes(spoil(rng, data))


def _spoil_member(rng: Random, name: str, data: bytes) -> bytes:
    if not name.endswith(".json"):
        return spoil(rng, data)
    try:
        return to_json(rng, rewrite_tree(rng, json.loads(data), 1)).encode("utf-8", "surrogatepass")
    except (ValueError, RecursionError):
        return spoil(rng, data)


def _spoil_coco(rng: Random, data: bytes, outside: Path) -> bytes:
    values = json.loads(data)
    action = rng.randrange(8)
    if action == 0:
        rng.choice(values["images"])["file_name"] = leads_out(rng, outside)
    elif action == 1:
        values["annotations"] = values["annotations"] * rng.choice((2, 1000))
    elif action == 2:
        rng.choice(values["annotations"])["bbox"] = [rng.choice(NUMBERS) for _ in range(rng.choice((4, 4, 4, 3, 5, 0)))]
    elif action == 3:
        one = rng.choice(rng.choice((values["images"], values["annotations"], values["categories"])))
        one[rng.choice(tuple(one))] = odd_value(rng)
    elif action == 4:
        rng.choice(values["annotations"])["segmentation"] = rng.choice(
            ([[1, 2]], {"counts": "abc", "size": [2**31, 2**31]}, {"counts": [2**40], "size": [5, 5]}, odd_value(rng))
        )
    elif action == 5:
        rng.choice(values["categories"])["name"] = odd_text(rng)
    else:
        values = rewrite_tree(rng, values, rng.choice((1, 1, 3)))
    return to_json(rng, values).encode("utf-8", "surrogatepass")


def leads_out(rng: Random, outside: Path) -> str:
    """Return a path of a file that does not belong to the set."""
    return rng.choice(
        (str(outside / "secret.jpg"), "../../outside/secret.jpg", "../../../outside/secret.jpg",
         "../outside/secret.jpg", str(outside / "secret.txt"), "/etc/passwd", "/dev/zero", str(outside),
         "/proc/self/environ", "~/secret.jpg")
    )  # fmt: skip


def _spoil_xml(rng: Random, data: bytes, outside: Path) -> bytes:
    if rng.random() < 0.12:
        text = data.decode()
        pairs = zip("abcde", ("ha", "&a;", "&b;", "&c;", "&d;"), strict=True)
        growing = "".join(f'<!ENTITY {name} "{inner * 9}">' for name, inner in pairs)
        entity = rng.choice((f'<!ENTITY e SYSTEM "file://{outside}/secret.txt">', '<!ENTITY e "ha">', growing))
        return f"<!DOCTYPE annotation [{entity}]>{text.replace('<name>', '<name>&e;', 1)}".encode()
    if rng.random() < 0.05:
        return rng.choice(
            (b"<a>" * 50_000, b"<?xml version='1.0' encoding='utf-16'?><annotation/>", b"<annotation>" * 3)
        )
    root = ElementTree.fromstring(data)
    nodes = list(root.iter())
    for _ in range(rng.choice((1, 1, 3))):
        node = rng.choice(nodes)
        action = rng.randrange(7)
        if action < 3:
            node.text = str(odd_value(rng))[:5000]
        elif action == 3 and len(node):
            node.remove(node[rng.randrange(len(node))])
        elif action == 4 and len(node):
            node.extend([node[rng.randrange(len(node))]] * rng.choice((1, 3, 1000)))
        elif action == 5:
            node.tag = rng.choice(("name", "object", "bndbox", "xmin", "part", "x"))
        else:
            names = [one for one in nodes if one.tag in ("filename", "folder", "path")]
            rng.choice(names or nodes).text = leads_out(rng, outside)
    text = ElementTree.tostring(root, encoding="unicode").encode("utf-8", "replace")
    return text.replace(b"\0", b"?")


def _spoil_yaml(rng: Random, data: bytes, outside: Path) -> bytes:
    if rng.random() < 0.25:
        bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
            f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 9)}]\n" for n in range(rng.choice((2, 8)))
        )
        return data + rng.choice(
            (bomb.encode(), b"\nx: " + b"[" * 5000, b"\n\tx: 1", b"\n? [a]\n: 1",
             b"\nnames: [no, on, 012, 2020-01-01, 1:30]\n",
             f"\nx: !!python/object/apply:os.mkdir ['{outside}/pwned']".encode(), b"\nnames: *names", b"\nx: &x [*x]",
             b"\nnames: &n\n  - *n", b"\n" + b"- " * 3000, b"\nnc: 99999999999999999999", b"\n...\n---\nx: 1",
             b"\n\x00")
        )  # fmt: skip
    values = yaml.safe_load(data)
    action = rng.randrange(5)
    if action == 0 and isinstance(values, dict):
        values[rng.choice(("path", "train", "val", "test"))] = rng.choice((leads_out(rng, outside), odd_value(rng)))
    elif action == 1 and isinstance(values, dict):
        values["names"] = rng.choice(
            (odd_value(rng), {0: "a", 5: "b"}, {"a": "b"}, ["x", "x"], [odd_text(rng), "b", "c"])
        )
    else:
        values = rewrite_tree(rng, values, rng.choice((1, 1, 3)))
    return yaml.safe_dump(values, allow_unicode=rng.random() < 0.5).encode("utf-8", "surrogatepass")


def _spoil_lines(rng: Random, data: bytes, outside: Path) -> bytes:
    lines = data.decode("utf-8", "replace").splitlines() or [""]
    for _ in range(rng.choice((1, 1, 3))):
        at, action = rng.randrange(len(lines)), rng.randrange(7)
        words = lines[at].split() or ["0"]
        if action < 2:
            words[rng.randrange(len(words))] = str(rng.choice(NUMBERS))
        elif action == 2:
            words = words[: rng.randrange(len(words))] + [
                str(rng.choice(NUMBERS)) for _ in range(rng.choice((0, 1, 6, 2000)))
            ]
        elif action == 3:
            words = [odd_text(rng)]
        elif action == 4:
            words = [leads_out(rng, outside)]
        elif action == 5:
            # A list of this many images is a legitimate input; this many labels of one image are not.
            most = 20_000 if lines[0][:1].isdigit() and " " in lines[0] else 500
            lines = lines * rng.choice((2, 100, most)) if len(lines) < 10 else lines
        else:
            words = words * 2
        lines[at] = " ".join(words)
    return "\n".join(lines).encode("utf-8", "replace")
