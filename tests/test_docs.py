"""The site builds without a warning, needs no network, names everything public; its commands print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterable
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path

import pytest

from optcc.cli.options import COMMANDS
from tools.docs_commands import agrees, check, prepared, run, steps

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = [DOCS / "tutorial.md", *sorted(DOCS.glob("howto-*.md"))]
PACKAGES = ("optcc", "optcc.theory", "optcc.runtime")


def sphinx(conf: Path, out: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Build the pages of the folder above `conf` as `make docs` does."""
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-E",
        "-b",
        "html",
        "-c",
        str(conf),
        *options,
    ]
    return subprocess.run(
        [*command, str(conf.parent), str(out)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    out = tmp_path_factory.mktemp("site")
    return out, sphinx(DOCS, out)


@pytest.fixture(scope="module")
def site(built: tuple[Path, subprocess.CompletedProcess[str]]) -> Path:
    """The folder of the site, which is whole in spite of warnings."""
    return built[0]


@pytest.mark.long
def test_the_site_builds_without_a_warning(built: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    assert (built[1].returncode, built[1].stderr) == (0, "")


@pytest.mark.long
def test_every_page_is_there(site: Path) -> None:
    written = {path.relative_to(ROOT).with_suffix(".html") for path in DOCS.rglob("*.md")}
    assert [str(page) for page in written if not (site / page).is_file()] == []
    assert "url=docs/index.html" in (site / "index.html").read_text()


# A small site with the same settings, and what is wrong in it: name of the page -> its text, and what the build says.
FAULTS = {
    "gone": ("# A\n\n[a page](missing.md)\n", "gone.md:3: WARNING: 'myst' cross-reference target not found"),
    "anchor": ("# A\n\n[a place](index.md#nowhere)\n", "anchor.md:3: WARNING: local id not found"),
    "here": ("# A\n\n[a place](#nowhere)\n", "here.md:3: WARNING: 'myst' cross-reference target not found"),
    "source": (
        "# A\n\n[a file](../code/missing.py)\n",
        "source.md:3: WARNING: 'myst' cross-reference target not found",
    ),
    "picture": ("# A\n\n![a picture](missing.svg)\n", "picture.md:3: WARNING: image file not readable"),
    "name": (
        "# A\n\n```{eval-rst}\n.. autofunction:: optcc.nothing\n```\n",
        "WARNING: autodoc: failed to import 'nothing'",
    ),
    "lexer": ("# A\n\n```nothing\nx\n```\n", "lexer.md:3: WARNING: Pygments lexer name 'nothing' is not known"),
    "orphan": ("# A\n", "orphan.md: WARNING: document isn't included in any toctree"),
}


def small_site(folder: Path, pages: dict[str, str]) -> Path:
    """The project's settings over other pages, of which `orphan` is in no group. Returns the folder of the settings."""
    docs = folder / "docs"
    docs.mkdir()
    (docs / "_static").mkdir()
    (docs / "index.md").write_text("# Here\n\n## A place\n")
    for name, text in pages.items():
        (docs / f"{name}.md").write_text(text)
    settings = (DOCS / "conf.py").read_text()
    groups = {"All": [f"docs/{name}" for name in pages if name != "orphan"]}
    (docs / "conf.py").write_text(f"{settings}\nhtml_css_files = []\ngroups = {groups!r}\n")
    return docs


def test_every_fault_is_a_warning_and_fails_the_build(tmp_path: Path) -> None:
    """And a sound page is none: that the build passes without faults is `test_the_site_builds_without_a_warning`."""
    (tmp_path / "code.py").write_text("x = 1\n")
    sound = {"sound": "# A\n\n[a place](index.md#a-place), [a file](../code.py)\n"}
    docs = small_site(tmp_path, sound | {name: text for name, (text, _) in FAULTS.items()})
    done = sphinx(docs, tmp_path / "out")
    assert done.returncode != 0
    assert [name for name, (_, said) in FAULTS.items() if said not in done.stderr] == [], done.stderr
    assert "sound.md" not in done.stderr


def broken(page: Path) -> list[str]:
    """Links of a page that is not on the site to files that do not exist."""
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    return [link for link in links if "://" not in link and not (page.parent / link).exists()]


def test_the_readme_has_no_broken_link(tmp_path: Path) -> None:
    assert broken(ROOT / "README.md") == []
    (tmp_path / "README.md").write_text("[a](b.md), [c](README.md#d), [e](https://f)")
    assert broken(tmp_path / "README.md") == ["b.md"]


class Fetched(HTMLParser):
    """Addresses that a browser fetches to show the page; links that a person may follow are none of them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        address = given.get("href") if tag == "link" else given.get("src") if tag != "a" else None
        if address and re.match(r"(https?:)?//", address):
            self.found.append(address)


def fetched(folder: Path) -> list[str]:
    """What the pages and styles below `folder` would fetch from a network."""
    pages = [address for path in folder.rglob("*.html") for address in Fetched(path.read_text()).found]
    styles = [path.read_text() for path in folder.rglob("*.css")]
    return pages + [
        address
        for style in styles
        for address in re.findall(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"')]+)", style)
    ]


@pytest.mark.long
def test_nothing_is_fetched_to_show_a_page(site: Path) -> None:
    assert fetched(site) == []


def test_what_is_fetched_is_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<a href="https://a"></a><script src="https://b"></script><link href="//c"><img src="d">'
    )
    (tmp_path / "a.css").write_text("@import 'https://e'; x { background: url(https://f) } y { background: url(g) }")
    assert sorted(fetched(tmp_path)) == ["//c", "https://b", "https://e", "https://f"]


def public_names(packages: Iterable[str] = PACKAGES) -> list[tuple[str, set[str]]]:
    """Every public name, and the names that it may be described under."""
    found = []
    for package in packages:
        module = import_module(package)
        for name in module.__all__:
            value = getattr(module, name)
            home = f"{value.__module__}.{value.__qualname__}" if hasattr(value, "__qualname__") else ""
            found.append((f"{package}.{name}", {f"{package}.{name}", f"optcc.{name}", f"optcc.runtime.{name}", home}))
    return found


def undescribed(described: set[str]) -> list[str]:
    return [name for name, any_of in public_names() if not any_of & described]


@pytest.mark.long
def test_the_reference_describes_every_public_name(site: Path) -> None:
    pages = "".join(path.read_text() for path in (site / "docs/reference").glob("*.html"))
    described = set(re.findall(r'id="(optcc\.[\w.]+)"', pages))
    assert undescribed(described) == []
    described.discard("optcc.Cluster")
    assert undescribed(described) == ["optcc.Cluster"]


@pytest.mark.long
def test_the_reference_describes_every_command(site: Path) -> None:
    page = (site / "docs/reference/cli.html").read_text()
    assert [name for name in COMMANDS if f'id="optcc-{name}"' not in page] == []


@pytest.mark.long
@pytest.mark.timeout(900)  # half a minute on an idle machine
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_print_what_the_page_says(page: Path, tmp_path: Path) -> None:
    """Where only figures moved: make docs-commands, then read the diff."""
    assert [f"{step.text}\n{printed}" for step, printed in check(page.read_text(), tmp_path)] == []


def test_every_page_has_commands() -> None:
    assert {page.stem: len(list(steps(page.read_text()))) for page in PAGES if not list(steps(page.read_text()))} == {}
    assert len(list(steps((DOCS / "tutorial.md").read_text()))) >= 6


def test_a_page_that_is_wrong_is_found(tmp_path: Path) -> None:
    page = (
        "```console\n$ echo one \\\n  two\none two\n$ echo three\nfour\n```\n\n"
        "<!-- measured -->\n```console\n$ echo 5 s\n6 ms\n```\n```pycon\n>>> 1 + 1\n3\n```\n```sh\n$ not run\n```\n"
    )
    (tmp_path / "run").mkdir()
    assert [(step.text, printed[:5]) for step, printed in check(page, tmp_path / "run")] == [
        ("echo three", "three"),
        (">>> 1 + 1\n3", "*****"),
    ]


def test_a_command_that_fails_is_found(tmp_path: Path) -> None:
    (step,) = steps("```console\n$ optcc bound nonsense\n```\n")
    with pytest.raises(AssertionError, match="exit status 2"):
        run(step, prepared(tmp_path))


@pytest.mark.parametrize(
    ("expected", "printed", "measured", "same"),
    [
        ("a  b", "a b\n", False, True),
        ("a 1", "a 2", False, False),
        ("a 1 ms", "a 2.5 us", True, True),
        ("a 1 exact", "a 2 wrong", True, False),
        ("a\n...\nz", "a\nb\nc\nz", False, True),
        ("a\n...\nz", "a\nb\nc", False, False),
        ("a ... z", "a bc z", False, True),
        ("a", "a\nb", False, False),
        ("", "a", False, False),
    ],
)
def test_what_agrees(expected: str, printed: str, measured: bool, same: bool) -> None:
    assert agrees(expected, printed, measured) is same


@pytest.mark.parametrize("name", ["timelines", "failover"])
def test_pictures_show_what_is_simulated_now(name: str, tmp_path: Path) -> None:
    """Their words, figures included; `make docs-pictures` draws them anew."""
    from optcc.study.page import save
    from tools import docs_pictures

    def words(picture: Path) -> list[str]:
        return re.findall(r"<text[^>]*>([^<]*)</text>", picture.read_text())

    save(getattr(docs_pictures, name)(), tmp_path / "new.svg")
    assert any("of the bound" in word or "of its bound" in word for word in words(tmp_path / "new.svg"))
    assert words(tmp_path / "new.svg") == words(DOCS / "pictures" / f"{name}.svg")
