import pytest
import yaml

from boxwright.core import yaml_file
from boxwright.core.yaml_file import parse


def test_plain_scalars_keep_their_text() -> None:
    text = "names: [no, on, 012, 1e3, null, ~, 2020-01-01, 2020-99-99, true, 0x1F, '7', .inf]"
    assert parse(text, plain=True)["names"] == [
        "no", "on", "012", "1e3", "null", "~", "2020-01-01", "2020-99-99", "true", "0x1F", "7", ".inf",
    ]  # fmt: skip


def test_aliases_may_repeat_little_but_not_without_end() -> None:
    assert parse("a: &a [1, 2]\nb: [*a, *a]")["b"] == [[1, 2], [1, 2]]
    assert parse("a: &a {x: 1}\nb: {<<: *a, y: 2}", plain=True)["b"] == {"x": "1", "y": "2"}
    lines = ["a: &a [" + ",".join(["x"] * 9) + "]"]
    lines += [f"{chr(98 + i)}: &{chr(98 + i)} [{','.join([f'*{chr(97 + i)}'] * 9)}]" for i in range(9)]
    for plain in (False, True):
        with pytest.raises(yaml.YAMLError, match="more than 200,000 values"):
            parse("\n".join(lines), plain=plain)
        with pytest.raises(yaml.YAMLError, match="alias"):
            parse("a: &a [1, *a]", plain=plain)


def test_deep_nesting_is_not_a_traceback() -> None:
    for text in ("train: " + "[" * 50_000, "{a: " * 20_000, "- " * 20_000):
        with pytest.raises(yaml.YAMLError, match="nested too deeply"):
            parse(text)


def test_what_is_written_is_read_again() -> None:
    values = {"names": ["no", "012", "1e3", "null", "a: b"], "nc": 5, "rate": 1e-3, "none": None}
    assert parse(yaml_file.dump(values)) == values
