"""The commands of documentation pages, run, and what they print held against what the page says.

    python tools/docs_commands.py PAGE ...             says where they differ
    python tools/docs_commands.py --update PAGE ...    writes what the commands print into the pages (doctests stay)

A fence of kind `console` has commands after "$ ", each followed by what it prints; one of kind `pycon` is a doctest.
All commands of a page run in one new folder, which contains the project's `examples`. "..." stands for anything: in a
line for any characters, as a line for any lines. After a comment <!-- measured --> numbers may differ.
"""

from __future__ import annotations

import doctest
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 240
BLOCK = re.compile(
    r"(?P<mark><!-- measured -->\n+)?```(?P<kind>console|pycon)\n(?P<body>.*?)\n```$", re.DOTALL | re.MULTILINE
)
NUMBER = re.compile(r"\d+(\.\d+)?(e[+-]?\d+)?( (ns|us|ms|s)\b)?")
RULE = re.compile(r"[━─]+")


@dataclass(frozen=True)
class Step:
    """A command, or the examples of one fence, and what it should print.

    start, end : where in the page the printed text stands; measured : numbers may differ
    """

    kind: str
    text: str
    printed: str
    start: int
    end: int
    measured: bool


def steps(page: str) -> Iterator[Step]:
    """What is to be run of a page (its Markdown), in order."""
    for block in BLOCK.finditer(page):
        kind, body, measured = block["kind"], block["body"], block["mark"] is not None
        if kind == "pycon":
            yield Step(kind, body, "", block.end("body"), block.end("body"), measured)
            continue
        for found in re.finditer(r"^\$ (?P<text>(?:.*\\\n)*.*)(?P<printed>(?:\n(?!\$ ).*)*)", body, re.MULTILINE):
            start = block.start("body") + found.start("printed")
            yield Step(
                kind, found["text"], found["printed"].strip("\n"), start, start + len(found["printed"]), measured
            )


def run(step: Step, folder: Path) -> str:
    """What a command prints, both streams in one. Raises AssertionError when it fails."""
    done = subprocess.run(
        ["bash", "-c", step.text],
        cwd=folder,
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"$ {step.text}\nexit status {done.returncode}\n{done.stdout}"
    return "\n".join(line.rstrip() for line in done.stdout.splitlines())


def run_examples(step: Step, folder: Path, names: dict[str, object]) -> str:
    """What doctest has to say of a step, run in `folder` and this interpreter; nothing when all is as the page says."""
    said: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    test = doctest.DocTestParser().get_doctest(step.text + "\n", names, "page", None, None)
    with chdir(folder):
        doctest.DocTestRunner(optionflags=flags).run(test, out=said.append, clear_globs=False)
    names.update(test.globs)
    return "".join(said)


def environment(folder: Path) -> dict[str, str]:
    """`optcc` and `python` of this interpreter and this tree, and no width to wrap lines at."""
    return {
        **{name: value for name, value in os.environ.items() if name != "COLUMNS"},
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "NO_COLOR": "1",
    }


def prepared(folder: Path) -> Path:
    """The folder, with the project's examples and its commands."""
    (folder / "bin").mkdir()
    (folder / "examples").symlink_to(ROOT / "examples")
    for name, arguments in (("optcc", "-m optcc"), ("python", "")):
        script = folder / "bin" / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        script.chmod(0o755)
    return folder


def agrees(expected: str, printed: str, measured: bool) -> bool:
    """Whether what was printed is what the page says. Runs of spaces count as one, empty lines not at all."""
    pattern = ""
    for line in expected.splitlines():
        if line.strip() == "...":
            pattern += r"(?:.*\n)*?"
        elif line.strip():
            pattern += ".*".join(re.escape(plain(part, measured)) for part in line.split("...")) + r"\n"
    shown = "".join(f"{plain(line, measured)}\n" for line in printed.splitlines() if line.strip())
    return re.fullmatch(pattern, shown) is not None


def plain(line: str, measured: bool) -> str:
    """What of a line is compared."""
    line = RULE.sub("─", " ".join(line.split()))
    return NUMBER.sub("#", line) if measured else line


def check(page: str, folder: Path) -> list[tuple[Step, str]]:
    """Run a page (its Markdown) in `folder`; the steps that print something else than it says, and what they print."""
    prepared(folder)
    names: dict[str, object] = {}
    differ = []
    for step in steps(page):
        printed = run_examples(step, folder, names) if step.kind == "pycon" else run(step, folder)
        if not agrees(step.printed, printed, step.measured):
            differ.append((step, printed))
    return differ


def main(arguments: list[str]) -> int:
    update = "--update" in arguments
    wrong = edited = 0
    for page in (Path(name) for name in arguments if name != "--update"):
        was = text = page.read_text(encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            differ = check(text, Path(folder))
        for step, printed in reversed(differ):
            print(f"{page}: {step.text}\n{printed}\n", file=sys.stderr)
            if step.kind == "console":
                text = text[: step.start] + (f"\n{printed}" if printed else "") + text[step.end :]
        wrong += len(differ)
        if not update:
            continue
        if page.read_text(encoding="utf-8") != was:  # commands take minutes, and places are those of what was read
            print(f"{page}: edited while its commands ran, not written: run it again", file=sys.stderr)
            edited += 1
        else:
            page.write_text(text, encoding="utf-8")
    return 1 if edited or (wrong and not update) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
