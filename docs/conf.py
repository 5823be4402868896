"""Sphinx configuration: MyST pages, furo, numpydoc; built with -W -n, without a network."""

import importlib.util
import re
import warnings

from docutils import nodes
from sphinx.util.docutils import SphinxDirective

import svmcore

project = "svmcore"
author = "The svmcore developers"
copyright = author
version = release = svmcore.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.doctest", "numpydoc"]
html_theme = "furo"
html_title = f"svmcore {release}"
exclude_patterns = ["_build"]
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
numpydoc_show_class_members = False
# It reads signatures before keep_own_sections has been there.
warnings.filterwarnings("ignore", message="Unknown section (Complexity|Source|Thread [Ss]afety)")
# Names of ours must resolve; those of Python and NumPy would need their sites.
# Private names of ours, such as type variables, have no page.
nitpick_ignore_regex = [(r"py:.*", r"(?!svmcore\.).*"), (r"py:.*", r"svmcore\..*\._\w+")]
# Examples in docstrings use the public names as their own module does.
doctest_global_setup = "import svmcore.stacks\nfrom svmcore import *"


class ModulesDirective(SphinxDirective):
    """``public-modules``: the reference of the listed modules, those that this build has."""

    has_content = True

    def run(self) -> list[nodes.Node]:
        lines = ["```{eval-rst}"]
        for name in " ".join(self.content).split():
            if importlib.util.find_spec(name) is not None:
                lines += [f".. rubric:: {name}", "", f".. automodule:: {name}", "   :members:", ""]
        return self.parse_text_to_nodes("\n".join([*lines, "```"]))


def keep_own_sections(app, what, name, obj, options, lines) -> None:
    """Bring our own sections under Notes, the place that numpydoc knows."""
    text = "\n".join(lines) + "\n"
    notes = []
    for title in ("Complexity", "Source", "Thread safety"):
        section = rf"^{title}\n-{{3,}}\n(.*?)(?=^\S[^\n]*\n-{{3,}}\n|\Z)"
        match = re.search(section, text, re.MULTILINE | re.DOTALL)
        if match is not None:
            notes += [f"**{title}.** {match.group(1).strip()}", ""]
            text = text[: match.start()] + text[match.end() :]
    if notes:
        head = re.search(r"^Notes\n-{3,}\n", text, re.MULTILINE)
        if head is not None:
            text = text[: head.end()] + "\n".join(notes) + "\n" + text[head.end() :]
        else:
            text += "\nNotes\n-----\n" + "\n".join(notes) + "\n"
        lines[:] = text.split("\n")


def setup(app) -> None:
    app.add_directive("public-modules", ModulesDirective)
    app.connect("autodoc-process-docstring", keep_own_sections, priority=100)
