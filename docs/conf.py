"""Settings of the documentation site. Built by scripts/docs.sh, without a network."""

import os
import re
import shutil
import sys
from pathlib import Path

from sphinx.application import Sphinx

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
COPIES = DOCS / "generated"
sys.path.insert(0, str(ROOT))

import cerebras_tensorflow  # noqa: E402, F401  so that tensorflow.estimator can be found
from cerebras_tensorflow.version import __version__  # noqa: E402

project = "cerebras_tensorflow"
author = "the contributors of cerebras_tensorflow"
copyright = f"2026, {author}"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
]
templates_path = ["_templates"]
exclude_patterns = ["_build"]

# The build does not run code blocks; tests/docs does.
nb_execution_mode = "off"
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]
myst_links_external_new_tab = False

autosummary_generate = True
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
add_module_names = False

html_theme = "sphinx_book_theme"
html_title = f"cerebras_tensorflow {release}"
html_theme_options = {"show_toc_level": 2, "use_download_button": False, "use_fullscreen_button": False}
# The words after a fence's language say how a block is tested (tests/docs/markdown.py). Sphinx cannot parse them.
suppress_warnings = ["misc.highlighting_failure"]


LINK = re.compile(r"(?<=\]\()[^)\s#]+(?=[)#])")


def copy_documents() -> None:
    """Copy the READMEs and other documents of the repository into the site, and adapt their links."""
    shutil.rmtree(COPIES, ignore_errors=True)
    for path in sorted(ROOT.rglob("*.md")):
        parts = path.relative_to(ROOT).parts
        if parts[0] in ("docs", "tests", "build") or any(part.startswith(".") for part in parts):
            continue
        copy = COPIES.joinpath(*parts)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(with_links_of_the_site(path.read_text(encoding="utf-8"), path, copy), encoding="utf-8")


def with_links_of_the_site(text: str, path: Path, place: Path) -> str:
    """Return a document with its relative links changed.

    Args:
        text: The document.
        path: Where it is in the repository.
        place: Where it is in the site's sources.
    """

    def target(match: re.Match[str]) -> str:
        file = (path.parent / match[0]).resolve()
        if file.is_dir():
            file = next((f for f in (file / "README.md", file / "__init__.py") if f.is_file()), file)
        if not file.is_file():
            return match[0]
        if file.suffix == ".md" and not file.is_relative_to(DOCS):
            file = COPIES / file.relative_to(ROOT)
        return os.path.relpath(file, place.parent)

    return LINK.sub(target, text)


def change_links(_app: Sphinx, docname: str, source: list[str]) -> None:
    """Make links in the pages of docs/ point to the copies."""
    place = DOCS / f"{docname}.md"
    if place.is_file() and not place.is_relative_to(COPIES):
        source[0] = with_links_of_the_site(source[0], place, place)


copy_documents()


def setup(app: Sphinx) -> None:
    """Register `change_links`; Sphinx calls this."""
    app.connect("source-read", change_links)
