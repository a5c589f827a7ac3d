from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from boxwright.core.config import load_config, parse_overrides, to_dict, to_yaml
from boxwright.core.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Train:
    data: Path
    max_epoch: int = 300
    lr: float = 0.01
    name: str = "exp"
    resume: bool = False
    size_hw: tuple[int, int] = (640, 640)
    classes: tuple[str, ...] = ()
    weights: Path | None = None
    workers: int | Literal["auto"] = "auto"
    note: str | None = None
    scale: float | int = 1
    strategy: Literal["spawn", "ray"] = "spawn"


def load(*words: str) -> Train:
    return load_config(Train, None, ["data=d", *words])


def load_text(folder: Path, text: str, overrides: Sequence[str] = ()) -> Train:
    path = folder / "run.yaml"
    path.write_text(text, encoding="utf-8")
    return load_config(Train, path, overrides)


def test_pairs_and_equals_signs_may_be_mixed():
    words = ["max_epoch", "300", "output_dir", "./x", "lr=0.1", "offset", "-1"]
    assert parse_overrides(words) == {"max_epoch": 300, "output_dir": "./x", "lr": 0.1, "offset": -1}


def test_dashes_and_underscores_in_keys_mean_the_same():
    assert parse_overrides(["max-epoch", "3", "weight-decay=0.1"]) == {"max_epoch": 3, "weight_decay": 0.1}


def test_only_the_first_equals_sign_splits():
    assert parse_overrides(["url=http://x/?a=b", "path", "./a=b"]) == {"url": "http://x/?a=b", "path": "./a=b"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("1E5", 100000.0),
        (".5", 0.5),
        ("-2.", -2.0),
        (".inf", float("inf")),
        ("1_000", 1000),
        ("0x10", 16),
        ("012", "012"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("yes", "yes"),
        ("true", True),
        ("null", None),
        ("~", None),
        ("None", None),
        ("[1, two]", [1, "two"]),
        ("*.jpg", "*.jpg"),
        ("#1", "#1"),
        ("''", ""),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_a_value_is_read_as_yaml(text: str, value: object):
    got = parse_overrides([f"key={text}"])["key"]
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["max_epoch"], "'max_epoch' has no value"),
        (["max_epoch="], "'max_epoch' has no value"),
        (["max_epoch", ""], "'max_epoch' has no value"),
        (["output_dir", "lr=0.1"], "'output_dir' has no value: 'lr=0.1' follows"),
        (["300", "max_epoch"], "'300' is not the name of a setting"),
        (["--lr", "0.1"], "'--lr' is not the name of a setting"),
        (["lr=1", "lr", "2"], "'lr' is given twice: '1' and '2'"),
        (["max-epoch=1", "max_epoch=2"], "'max_epoch' is given twice"),
    ],
)
def test_words_that_are_no_settings_are_refused(words: list[str], message: str):
    with pytest.raises(UsageError, match=message):
        parse_overrides(words)


@pytest.mark.parametrize(
    ("word", "name", "value"),
    [
        ("max_epoch=3", "max_epoch", 3),
        ("lr=1e-3", "lr", 0.001),
        ("lr=1", "lr", 1.0),
        ("name=12", "name", "12"),
        ("name=on", "name", "on"),
        ("name=a: b", "name", "a: b"),
        ("name=*.jpg", "name", "*.jpg"),
        ("name=''", "name", ""),
        ("name='null'", "name", "null"),
        ("note=None", "note", None),
        ("note=#1", "note", "#1"),
        ("resume=true", "resume", True),
        ("resume=on", "resume", True),
        ("resume=No", "resume", False),
        ("size_hw=[416, 320]", "size_hw", (416, 320)),
        ("classes=[cat, 7, no]", "classes", ("cat", "7", "no")),
        ("classes=[]", "classes", ()),
        ("weights=a/b.pt", "weights", Path("a/b.pt")),
        ("weights=2024", "weights", Path("2024")),
        ("weights=null", "weights", None),
        ("workers=4", "workers", 4),
        ("workers=auto", "workers", "auto"),
        ("scale=3", "scale", 3),
        ("scale=0.5", "scale", 0.5),
        ("strategy=ray", "strategy", "ray"),
    ],
)
def test_an_override_takes_the_annotated_type(word: str, name: str, value: object):
    got = getattr(load(word), name)
    assert (type(got), got) == (type(value), value)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("max_epoch=many", "max_epoch='many' can't be used: it must be int"),
        ("max_epoch=3.0", "max_epoch=3.0 .* int"),
        ("max_epoch=true", "max_epoch=True .* int"),
        ("max_epoch=012", "max_epoch='012' .* int"),
        ("lr=fast", "lr='fast' .* float"),
        ("lr=true", "lr=True .* float"),
        ("resume=1", "resume=1 .* bool"),
        ("name=null", "name=None .* str"),
        ("data=None", "data=None .* path"),
        ("size_hw=640", r"size_hw=640 .* a list \[int, int\]"),
        ("size_hw=[640]", r"size_hw=\[640\] .* a list \[int, int\]"),
        ("size_hw=[640, x]", r"size_hw\[1\]='x' .* int"),
        ("classes=cat", "classes='cat' .* a list of str"),
        ("workers=many", "workers='many' .* int or one of 'auto'"),
        ("workers=aut", "Did you mean 'auto'"),
        ("strategy=rey", "one of 'spawn', 'ray'. Did you mean 'ray'"),
        ("max_epch=3", "'max_epch'. Did you mean 'max_epoch'"),
        ("lr.x=3", "'lr.x=3' is not the name of a setting"),
    ],
)
def test_an_override_that_does_not_fit_is_refused(word: str, message: str):
    words = [word] if word.startswith("data=") else ["data=d", word]
    with pytest.raises(UsageError, match=message):
        load_config(Train, None, words)


def test_a_required_setting_must_be_given():
    with pytest.raises(UsageError, match="No value for 'data', which Train needs"):
        load_config(Train, None, [])


def test_a_file_gives_settings_and_flags_and_words_go_on_top(tmp_path: Path):
    path = tmp_path / "run.yaml"
    path.write_text("data: d\nmax-epoch: 5\nlr: 1e-3\nnote: x\n", encoding="utf-8")
    run = load_config(Train, path, ["note=null"], {"lr": 0.7, "weights": Path("w")})
    assert (run.data, run.max_epoch, run.lr, run.weights, run.note) == (Path("d"), 5, 0.7, Path("w"), None)


def test_a_flag_and_a_word_for_the_same_setting_are_refused():
    with pytest.raises(UsageError, match=r"'lr' is given twice: 0\.7 and '0\.5'"):
        load_config(Train, None, ["data=d", "lr=0.5"], {"lr": 0.7})


def test_a_flag_that_does_not_fit_is_refused():
    with pytest.raises(UsageError, match=r"max_epoch='many' .* int"):
        load_config(Train, None, ["data=d"], {"max_epoch": "many"})


def test_an_empty_file_gives_the_defaults(tmp_path: Path):
    assert load_text(tmp_path, "# nothing\n", ["data=d"]) == Train(data=Path("d"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("data: d\nmax_epch: 3\n", "run.yaml': .*'max_epch'. Did you mean 'max_epoch'"),
        ("data: d\n1: 3\n", "Unknown key '1'"),
        ("<<: {data: d}\n", "Unknown key '<<'"),
        ("data: d\nname: 12\n", "name=12 .* str"),
        ("data: d\nweights: [1]\n", r"weights=\[1\] .* path or null"),
        ("data: d\nlr: 1\nlr: 2\n", "line 3: key 'lr' is given twice"),
        ("data: d\nmax-epoch: 1\nmax_epoch: 2\n", "'max_epoch' is given twice"),
        ("data: d\nsize_hw: [1, 2\nlr: 3\n", "not valid YAML: line 3"),
        ("data: d\nname: \x07\n", "not valid YAML: line 2"),
        ("data: d\nlr: !!float x\n", "line 2: unreadable value"),
        ("data: d\nname: !!python/name:os.system\n", "line 2"),
        ("data: d\n---\ndata: e\n", "not valid YAML: line 2"),
        ("- data\n", "must hold lines of `key: value`, not list"),
        ("lr: 3\n", "No value for 'data'"),
    ],
)
def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, text: str, message: str):
    with pytest.raises(UsageError, match=message):
        load_text(tmp_path, text)


def test_a_file_that_can_not_be_read_is_refused(tmp_path: Path):
    with pytest.raises(UsageError, match=r"gone.yaml' does not exist"):
        load_config(Train, tmp_path / "gone.yaml", [])
    with pytest.raises(UsageError, match="can't be read as text"):
        load_config(Train, tmp_path, [])
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(UsageError, match="can't be read as text"):
        load_config(Train, tmp_path / "latin.yaml", [])


def test_an_annotation_that_yaml_can_not_hold_is_a_bug_of_the_config():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Odd:
        when: complex = 0j

    with pytest.raises(TypeError, match="'when' is annotated"):
        load_config(Odd, None, ["when=1"])


def test_the_yaml_text_is_plain_and_readable():
    run = Train(data=Path("a/b"), classes=("Straße", "no"), lr=1e-05)
    text = to_yaml(run)
    assert "size_hw: [640, 640]\n" in text
    assert "- Straße\n- 'no'\n" in text
    assert yaml.safe_load(text) == to_dict(run)


odd_texts = [
    "1e-3",
    "null",
    "None",
    "yes",
    "012",
    "1:30",
    "2024-01-01",
    "=",
    "<<",
    "~",
    "a  b " * 60,
    "\x85",
    "\u2028 x",
]
texts = st.text(max_size=20) | st.sampled_from(odd_texts)
runs = st.builds(
    Train,
    data=texts.map(Path),
    max_epoch=st.integers(),
    lr=st.floats(allow_nan=False),
    name=texts,
    resume=st.booleans(),
    size_hw=st.tuples(st.integers(), st.integers()),
    classes=st.lists(texts, max_size=4).map(tuple),
    weights=st.none() | texts.map(Path),
    workers=st.integers() | st.just("auto"),
    note=st.none() | texts,
    scale=st.integers() | st.floats(allow_nan=False),
    strategy=st.sampled_from(["spawn", "ray"]),
)


@given(run=runs)
@settings(max_examples=100, deadline=None)
def test_a_config_comes_back_equal_from_its_yaml(tmp_path_factory: pytest.TempPathFactory, run: Train):
    path = tmp_path_factory.getbasetemp() / "round.yaml"
    path.write_bytes(to_yaml(run).encode("utf-8"))
    back = load_config(Train, path, [])
    assert back == run
    assert repr(back) == repr(run)
