"""What the site needs beyond Sphinx and MyST (see docs/conf.py): navigation, notebooks, a first page at the root."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import nbformat
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    """A notebook as it is stored, figures included; nothing is executed."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        super().parse(as_markdown(inputstring), document)


def as_markdown(notebook: str) -> str:
    """The notebook (its JSON) as one Markdown text, figures as data addresses."""
    parts = []
    for cell in nbformat.reads(notebook, as_version=4).cells:  # type: ignore[no-untyped-call]
        parts.append(cell.source if cell.cell_type == "markdown" else f"```python\n{cell.source}\n```")
        for output in cell.get("outputs", ()):
            data = output.get("data", {})
            if "image/png" in data:
                picture = "".join(data["image/png"].split())
                parts.append(f"![a figure of this notebook](data:image/png;base64,{picture})")
            else:
                shown = output.get("text") or data.get("text/plain", "")
                parts.append(f"```text\n{shown.rstrip()}\n```")
    return "\n\n".join(parts) + "\n"


def inline_formula(translator: Any, node: nodes.math) -> None:
    """A formula as MathML, by docutils' converter."""
    translator.body.append(tex2mathml(node.astext()))
    raise nodes.SkipNode


def block_formula(translator: Any, node: nodes.math_block) -> None:
    """The same on lines of its own."""
    translator.body.append(f"<div>{tex2mathml(node.astext(), as_block=True)}</div>")
    raise nodes.SkipNode


def grouped(groups: Mapping[str, Sequence[str]], pages: Iterable[str]) -> dict[str, list[str]]:
    """The pages of each group in order: those it names, and those that fit a pattern and that no other line names."""
    named = {name for names in groups.values() for name in names}
    left = sorted(set(pages) - named, key=natural)
    found: dict[str, list[str]] = {}
    for title, names in groups.items():
        found[title] = []
        for name in names:
            fits = [page for page in left if fnmatchcase(page, name)] if "*" in name else [name]
            left = [page for page in left if page not in fits]
            found[title] += fits
    return found


def natural(name: str) -> list[Any]:
    """A key that sorts 2 before 10."""
    return [int(part) if part.isdigit() else part for part in re.split(r"(\d+)", name)]


def add_navigation(app: Sphinx, docname: str, source: list[str]) -> None:
    """The first page gets the groups as hidden tables of contents: in its file they would be noise on a code host."""
    if docname == app.config.root_doc:
        pages = set(app.env.found_docs) - {docname}
        for title, names in grouped(app.config.groups, pages).items():
            entries = "\n".join(f"/{name}" for name in names)
            source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n{entries}\n```\n"


def first_page(app: Sphinx, *_: Any) -> list[str]:
    """It is read anew in every build, since a new page changes its groups."""
    return [app.config.root_doc]


def add_front_door(app: Sphinx, error: Exception | None) -> None:
    """The folder of the site opens its first page."""
    if error is None and app.builder.format == "html":
        target = f"{app.config.root_doc}.html"
        refresh = f'<meta http-equiv="refresh" content="0; url={target}">'
        page = f'<!doctype html><title>optcc</title>{refresh}<a href="{target}">optcc</a>\n'
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("groups", {}, "env")
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    app.add_html_math_renderer("mathml", (inline_formula, None), (block_formula, None))
    app.connect("source-read", add_navigation)
    app.connect("env-get-outdated", first_page)
    app.connect("build-finished", add_front_door)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
