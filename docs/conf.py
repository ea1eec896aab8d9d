"""Makes the site: `sphinx-build -W docs site`, with the extra `docs` and without a network."""

import pathlib
import re
from typing import Any

import chex
from sphinx.util.typing import stringify_annotation

ROOT = pathlib.Path(__file__).resolve().parent.parent

project = "jaxpgs"
author = project_copyright = "The jaxpgs authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
extensions += ["sphinx.ext.viewcode"]
root_doc = "docs/index"
include_patterns = [
    "*.md", "docs/*.md", "docs/api/**", "notebooks/*.ipynb", "benchmarks/*.md",
    "benchmarks/studies/*/*.md",
]  # fmt: skip
templates_path = [str(ROOT / "docs" / "_templates")]
html_theme = "furo"
html_title = "jaxpgs"

myst_heading_anchors = 4  # as forges make them
nb_execution_mode = "off"  # notebooks show what they showed when they were run
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
default_role = "py:obj"  # a link where there is such a name, else code
autosummary_ignore_module_all = False
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_attr_annotations = False  # they are in the signature
napoleon_use_ivar = True  # else the attributes of tuples are described twice
napoleon_use_rtype = False


def setup(app: Any) -> None:
    """Reads pages from all of the repository, so that their links lead where a forge leads them."""
    app.srcdir = type(app.srcdir)(ROOT)
    app.connect("source-read", _unlink_folders)
    app.connect("autodoc-skip-member", _skip)
    app.connect("autodoc-process-signature", _shorten)
    app.connect("build-finished", _begin_at_the_index)


def _unlink_folders(app: Any, page: str, source: list[str]) -> None:
    """A forge lists a folder to which a page links; a site has no page for one."""
    folder = (ROOT / page).parent
    links = re.compile(r"\[([^\]]*)\]\(([\w./-]+)\)")
    keep = lambda link: link[1] if (folder / link[2]).is_dir() else link[0]  # noqa: E731
    if (ROOT / f"{page}.md").exists():
        source[0] = links.sub(keep, source[0])


def _skip(app: Any, what: str, name: str, found: Any, skip: bool, options: Any) -> bool | None:
    """Leaves out fields of tuples, which the class's text describes."""
    return True if type(found).__name__ == "_tuplegetter" else None


def _shorten(app: Any, what: str, name: str, found: Any, options: Any, *texts: str | None) -> Any:
    """Writes `chex.Array` where its members would be listed."""
    members = stringify_annotation(chex.Array, "smart")
    return tuple(text and text.replace(members, "chex.Array") for text in texts)


def _begin_at_the_index(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        begin = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (pathlib.Path(app.outdir) / "index.html").write_text(begin)
