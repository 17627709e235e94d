"""Links between documents, files and headings lead somewhere."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.markdown import ROOT, anchors, documents, links


def problem(path: Path, link: str) -> str | None:
    """Return what is wrong with a link of a document, or None. Links to other hosts are not checked."""
    parts = urlsplit(link)
    if parts.scheme in ("http", "https", "mailto"):
        return None
    target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
    if not target.exists():
        return f"{link}: there is no {target}"
    if not target.is_relative_to(ROOT):
        return f"{link}: leads out of the repository"
    if parts.fragment and target.suffix == ".md" and parts.fragment not in anchors(target):
        return f"{link}: {target.name} has no such heading; it has {', '.join(sorted(anchors(target)))}"
    return None


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_or_heading(path: Path) -> None:
    assert [text for text in (problem(path, link) for link in links(path)) if text] == []


def test_a_missing_file_and_a_missing_heading_are_found(tmp_path: Path) -> None:
    page = ROOT / "README.md"
    assert "there is no" in (problem(page, "docs/no_such_page.md") or "")
    assert "no such heading" in (problem(page, "CONTRIBUTING.md#no-such-heading") or "")
    assert problem(page, "CONTRIBUTING.md#set-up") is None
    assert "out of the repository" in (problem(page, "../") or "")
