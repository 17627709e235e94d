"""README stays short and links to every page."""

from __future__ import annotations

import re

from tests.docs.markdown import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_readme_is_under_900_words() -> None:
    assert len(README.split()) < 900


def test_readme_links_to_every_page_of_docs() -> None:
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"index.md"}
    assert set(re.findall(r"\(docs/([\w-]+\.md)", README)) == pages
