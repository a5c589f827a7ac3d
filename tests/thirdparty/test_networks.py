"""The table of `docs/reference/thirdparty.md` holds: what it says of each network and method is what happens."""

import re
from pathlib import Path

import pytest
from support.networks_of_others import NETWORKS
from support.shared import ROOT
from support.thirdparty import find_paths, import_or_skip
from support.thirdparty_table import METHODS, measure, train

pytestmark = [pytest.mark.thirdparty, pytest.mark.usefixtures("one_torch_thread"), pytest.mark.filterwarnings("ignore")]


def read_table() -> dict[str, dict[str, str]]:
    """Return the cells of the page's table, without the marks of their notes."""
    text = (ROOT / "docs" / "reference" / "thirdparty.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("| ")
    ]
    head, *others = rows
    return {row[0]: {k: re.sub(r" \[\d+\]$", "", v) for k, v in zip(head, row, strict=True)} for row in others}


TABLE = read_table()


def test_the_table_has_every_network_and_method() -> None:
    assert list(TABLE) == list(NETWORKS)
    for row in TABLE.values():
        assert set(row) >= set(METHODS) | {"trains in 1", "trains in 2"}


@pytest.mark.parametrize("name", NETWORKS)
def test_each_conversion_does_what_the_table_says(name: str, tmp_path: Path) -> None:
    import_or_skip(NETWORKS[name].package)
    stated = {method: TABLE[name][method] for method in METHODS if TABLE[name][method] != "not measured"}
    found = measure([name], list(stated), tmp_path)[name]
    assert {method: outcome.works for method, outcome in found.items()} == stated


@pytest.mark.parametrize("processes", [1, 2])
def test_each_network_trains(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("timm", "transformers", "segmentation_models_pytorch"):
        import_or_skip(package)
    monkeypatch.setenv("PYTHONPATH", ":".join([*find_paths(), str(ROOT / "tests")]))
    names = [name for name in NETWORKS if TABLE[name][f"trains in {processes}"] != "not measured"]
    found = train(names, processes)
    assert {name: "yes" if outcome == "yes" else "no" for name, outcome in found.items()} == {
        name: TABLE[name][f"trains in {processes}"] for name in names
    }
