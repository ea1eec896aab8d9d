"""Makes the site: `sphinx-build -W docs site`, with the extra `docs` and without a network."""

import pathlib
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent

project = "jaxpgs"
author = project_copyright = "The jaxpgs authors"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "docs/index"
include_patterns = [
    "docs/*.md", "docs/api/*.md", "notebooks/*.ipynb", "benchmarks/**/*.md", "CHANGELOG.md",
    "CONTRIBUTING.md", "README.md",
]  # fmt: skip
html_theme = "furo"
html_title = "jaxpgs"

myst_heading_anchors = 4  # as forges make them
nb_execution_mode = "off"  # notebooks show what they showed when they were run
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 88
napoleon_numpy_docstring = False
napoleon_use_ivar = True  # else the attributes of tuples are described twice
napoleon_use_rtype = False


def setup(app: Any) -> None:
    """Reads pages from all of the repository, so that their links lead where a forge leads them."""
    app.srcdir = type(app.srcdir)(ROOT)
    app.connect("build-finished", _begin_at_the_index)


def _begin_at_the_index(app: Any, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        begin = f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n'
        (pathlib.Path(app.outdir) / "index.html").write_text(begin)
