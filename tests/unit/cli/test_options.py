import argparse
from pathlib import Path

import pytest
from support.fixtures import Command

from boxwright.cli.options import add_model_arguments, fraction, model_options, parse_size, positive, split_list
from boxwright.core.errors import UsageError
from boxwright.tasks.models import ModelOptions


def _parse(*words: str) -> ModelOptions:
    parser = argparse.ArgumentParser()
    add_model_arguments(parser)
    return model_options(parser.parse_args(["model.pth", *words]))


def test_a_size_is_one_side_or_height_by_width() -> None:
    assert parse_size("416") == (416, 416)
    assert parse_size("320x416") == parse_size("320X416") == (320, 416)


@pytest.mark.parametrize(
    "text", ["", "x", "abc", "415", "0", "-32", "32x", "32x64x96", "16", "32x33", "3.5", "320000", "32x8224"]
)
def test_a_size_that_the_network_cannot_take_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="multiples of 32"):
        parse_size(text)


def test_numbers_are_checked_where_they_are_read() -> None:
    assert (positive("3"), fraction("0"), fraction("1"), fraction("0.25")) == (3, 0, 1, 0.25)
    for text in ("0", "-1", "1.5", "", "x"):
        with pytest.raises(argparse.ArgumentTypeError, match="at least 1"):
            positive(text)
    for text in ("-0.1", "1.01", "nan", "inf", "x", ""):
        with pytest.raises(argparse.ArgumentTypeError, match="from 0 to 1"):
            fraction(text)


def test_a_list_is_split_at_commas() -> None:
    assert split_list("person, traffic light ,") == ("person", "traffic light")
    with pytest.raises(UsageError, match="names nothing"):
        split_list(" , ")


def test_what_is_not_said_is_left_to_the_file() -> None:
    assert _parse() == ModelOptions()


def test_every_option_reaches_the_recipe(tmp_path: Path) -> None:
    names = tmp_path / "names.txt"
    names.write_text("cat\ndog\n")
    words = ["--names", str(names), "--size", "64x96", "--legacy", "--output-form", "scores", "--act", "relu"]
    assert _parse(*words) == ModelOptions(
        names=("cat", "dog"), size_hw=(64, 96), preprocessing="legacy", output="scores", activation="relu"
    )


def test_empty_names_are_refused_and_not_ignored() -> None:
    with pytest.raises(UsageError, match="no name"):
        _parse("--names", "")


@pytest.mark.parametrize(("verb", "offered"), [("optimize", False), ("export", False), ("predict", True)])
def test_help_offers_converted_files_where_they_are_taken(boxwright: Command, verb: str, offered: bool) -> None:
    said = " ".join(boxwright(verb, "--help").out.split())
    assert "a name (yolox_nano), .pth" in said
    assert ("artifact folder" in said.split("Options:")[0]) == offered
    assert ("--output-form" in said) == offered


@pytest.mark.parametrize("verb", ["predict", "eval", "benchmark", "optimize", "export"])
def test_an_unknown_device_is_refused_before_anything_is_loaded(boxwright: Command, verb: str) -> None:
    words = {"predict": ["street.jpg"], "eval": ["--data", "set"]}.get(verb, [])
    done = boxwright(verb, "none.pth", *words, "--device", "cdua")
    assert done.code == 2
    assert "Did you mean 'cuda'?" in done.err
