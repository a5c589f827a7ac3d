import re
from pathlib import Path

from support.scenes import save_labelled_set

from boxwright.data.records import Records
from boxwright.data.stats import compute_stats
from boxwright.tasks.data import describe_set
from boxwright.tasks.stats_page import make_stats_page


def test_the_numbers_of_a_set_are_on_its_page(tmp_path: Path) -> None:
    folder = save_labelled_set(tmp_path / "data", [[("red", 1, 1)], [("red", 2, 2), ("blue", 5, 5)], []])
    stats = describe_set(folder, plot=tmp_path / "new" / "stats.html")
    page = (tmp_path / "new" / "stats.html").read_text()
    assert page == make_stats_page(stats, str(folder))
    assert re.search(r"<b>3</b>images</li><li><b>1</b>without a box</li><li><b>3</b>boxes", page)
    assert '<tr><td class="text">red</td><td>2</td><td>2</td></tr>' in page
    assert page.count("<svg") == 6
    assert not re.search(r"(src|href)=|url\(", page)


def test_names_are_text_and_an_empty_set_has_a_page() -> None:
    empty = Records.from_lists(root=".", paths=[], boxes_xyxy=[], class_ids=[], names=["<b>cat</b>"])
    page = make_stats_page(compute_stats(empty), "<i>")
    assert "&lt;b&gt;cat&lt;/b&gt;" in page
    assert "<i>" not in page
