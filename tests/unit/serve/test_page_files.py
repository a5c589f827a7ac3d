"""The files of the server's page."""

import re

from support.shared import ROOT

FILES = sorted((ROOT / "src" / "boxwright" / "serve" / "page").iterdir())


def test_the_page_is_small():
    assert 10_000 < sum(path.stat().st_size for path in FILES) < 150_000


def test_the_page_names_no_other_host_and_has_no_inline_code():
    text = "".join(path.read_text(encoding="utf-8") for path in FILES)
    assert set(re.findall(r"https?://[^\"'\s>]+", text)) == {"http://www.w3.org/2000/svg"}
    html = next(path for path in FILES if path.name == "index.html").read_text(encoding="utf-8")
    assert re.search(r"<script(?![^>]*\ssrc=)|<style|\sstyle=|\son[a-z]+=|javascript:", html) is None
