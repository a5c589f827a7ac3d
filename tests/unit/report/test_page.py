from html.parser import HTMLParser

from boxwright.report.page import Html, element, figures, join, make_page, section, table

MARKUP = '<img src=x onerror="run()">&amp;'


class Tags(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def test_text_is_escaped_wherever_it_enters_a_page() -> None:
    page = make_page(
        MARKUP,
        MARKUP,
        section(MARKUP, MARKUP),
        table([MARKUP], [[MARKUP]]),
        figures([(MARKUP, MARKUP)]),
        element("a", MARKUP, title=MARKUP),
    )
    assert "img" not in Tags(page).tags
    assert page.count("&lt;img src=x onerror=&quot;run()&quot;&gt;&amp;amp;") == 11


def test_markup_is_taken_as_it_is() -> None:
    assert join(["<i>", Html("<i>"), element("b", Html("<i>"), "<i>")]) == "&lt;i&gt;<i><b><i>&lt;i&gt;</b>"


def test_a_page_needs_no_network() -> None:
    page = make_page("title", "text", script="run()")
    assert not any(word in page for word in ("src=", "href=", "url(", "@import", "http:", "https:"))


def test_rows_have_kinds_and_columns_of_text_stand_left() -> None:
    shown = table(("name", "note", "value"), [("a", "b", "1"), ("c", "d", "2")], texts=2, kinds=("best", ""))
    assert '<tr class="best"><td class="text">a</td><td class="text">b</td><td>1</td></tr>' in shown
    assert '<tr><td class="text">c</td>' in shown
