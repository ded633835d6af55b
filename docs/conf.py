"""The documentation site: Sphinx with MyST; ``make docs`` builds it, every warning an error."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import pages  # noqa: E402

from zoo.version import __version__  # noqa: E402

project, author, copyright = "posterior-zoo", "the posterior-zoo developers", "the posterior-zoo developers"
release = version = __version__
language = "en"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
exclude_patterns = []
root_doc = "index"

myst_enable_extensions = ["deflist"]
myst_heading_anchors = 3

add_module_names = False
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
autodoc_inherit_docstrings = False
python_maximum_signature_line_length = 80
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_static_path = ["static"]
html_css_files = ["site.css"]
smartquotes = False
html_title = f"{project} {release}"


def setup(app) -> None:
    app.connect("builder-inited", lambda app: pages.write(HERE))
    app.connect("source-read", pages.complete)
    app.connect("autodoc-skip-member", pages.is_constant)
    app.connect("autodoc-process-docstring", pages.literal_blocks)
