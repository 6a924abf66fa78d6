"""Settings of the documentation's site: `make docs` builds it, `build/site/index.html` is its first page.

The pages are those of `docs/`, which a git host shows as well; the API reference is made of docstrings, tutorials are
executed. Nothing is fetched, neither when the site is built nor when it is read.

Formulas become MathML by docutils' own converter, which is here already. All browsers draw it without a script; MathJax
would come from the network or weigh megabytes, KaTeX a script and fonts, pictures would need LaTeX. And a formula that
cannot be converted is a warning of the build, not a red line that a reader finds.
"""

import os
import re

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.writers.html5 import HTML5Translator

import silentgrad

project = "silentgrad"
author = "The silentgrad authors"
project_copyright = "2026, the silentgrad authors"
version = release = silentgrad.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
exclude_patterns = ["_static"]
nitpicky = True

html_theme = "furo"
html_title = f"silentgrad {version}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
html_math_renderer = "mathml"

# Headings are anchors by the rule of git hosts, so that one link serves both.
myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 4
suppress_warnings = ["myst.header"]  # tables that `silentgrad reproduce` writes begin with a heading of second rank

nb_execution_mode = "force"
nb_execution_timeout = 900  # seconds for a cell, on a slow or busy machine too
nb_execution_raise_on_error = True
nb_execution_show_tb = True
nb_merge_streams = True
nb_output_stderr = "warn"  # and so an error: a cell that complains is not for readers
os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # progress bars without widgets are fine

# A name in single backticks is a link if it is documented, and code if not: it need not be. A role that is spelled out
# has to lead somewhere.
default_role = "py:obj"
autosummary_generate = False
autodoc_inherit_docstrings = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
maximum_signature_line_length = 150
napoleon_numpy_docstring = False
napoleon_use_rtype = False
nitpick_ignore = [  # inner types that signatures name
    ("py:class", "Measurements"),
    ("py:class", "silentgrad.decoders.protocol.Given"),
    ("py:class", "silentgrad.decoders.sums.SumProduct"),
    ("py:class", "silentgrad.decoders.sums.Gate"),
    ("py:class", "silentgrad.factors.latents.Latents"),
    ("py:class", "silentgrad.factors.pieces.RowSource"),
    ("py:class", "silentgrad.factors.rows.RowSet"),
    ("py:class", "silentgrad.lab.data.batches.R"),
    ("py:class", "silentgrad.lab.data.batches.T"),
    ("py:class", "silentgrad.lab.runs.evaluation.Share"),
    ("py:class", "silentgrad.lab.settings.options.Decoders"),
    ("py:class", "silentgrad.lab.store.records.Run"),
]
nitpick_ignore_regex = [
    ("py:obj", ".*"),
    # documented elsewhere, and nothing is fetched
    ("py:class", r"(anndata|collections|lightning|lightning_fabric|matplotlib|numpy|pathlib|torch)\..*"),
]


def mathml(tex: str, block: bool) -> str:
    """A formula in MathML, with two rules of TeX that the converter does not know."""
    tex = re.sub(r"(\\[dt]?frac)(\d)(\w)", r"\1{\2}{\3}", tex)  # it reads \frac12 x as 12 over x
    markup = tex2mathml(tex, as_block=block)
    function = r"<mi>(\w+)</mi>\s*<mo>&ApplyFunction;</mo>"  # log x and log(x): a space before x, none before (
    markup = re.sub(function + r"(?=\s*<mo[^>]*>\()", r'<mo lspace="0.17em" rspace="0">\1</mo>', markup)
    return re.sub(function, r'<mo lspace="0.17em" rspace="0.17em">\1</mo>', markup)


def formula(self: HTML5Translator, node: nodes.math | nodes.math_block) -> None:
    """Writes a formula, in the line or on lines of its own."""
    block = isinstance(node, nodes.math_block)
    try:
        markup = mathml(node.astext(), block)
    except MathError as error:
        logging.getLogger(__name__).warning("formula %r: %s", node.astext(), error, location=node)
        raise nodes.SkipNode from error
    if block:
        markup = f'<div class="math">{markup}</div>'
    self.body.append(markup)
    raise nodes.SkipNode


def signature(
    app: Sphinx, what: str, name: str, documented: object, options: object, written: str | None, returned: str | None
) -> tuple[str, str | None] | None:
    """A signature without what Python makes up: arguments of an inherited constructor, "<factory>" as a default."""
    if written is None:
        return None
    if what == "class" and written.startswith("(*args"):
        return "()", returned
    return written.replace("<factory>", "..."), returned


def skipped(app: Sphinx, what: str, name: str, member: object, skip: bool, options: object) -> bool | None:
    """Fields of a named tuple, whose docstrings Python makes up, are not listed: the class says what they are."""
    if str(member.__doc__).startswith("Alias for field number"):
        return True
    return None


def untyped(app: Sphinx, what: str, name: str, documented: object, options: object, lines: list[str]) -> None:
    """Keeps napoleon from taking the words before the first colon for the type of an attribute."""
    if what in ("attribute", "property") and lines:
        lines[0] = f": {lines[0]}"


def setup(app: Sphinx) -> None:
    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("autodoc-process-signature", signature)
    app.connect("autodoc-skip-member", skipped)
    app.connect("autodoc-process-docstring", untyped, priority=400)
