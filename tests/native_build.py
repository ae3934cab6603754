"""Libraries of native/ with a bug that is planted, and without: what is not changed is compiled once in a process."""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

NATIVE = Path(__file__).resolve().parent.parent / "native"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-fPIC")
LOOSE = ("-O1", "-Wno-error")
"""For code with a bug in it, which may leave something unused."""


def planted(folder: Path, file: str, *edits: tuple[str, str]) -> Path:
    """A copy of native/ below `folder`, in whose `file` each text of a pair is the other one."""
    source = copytree(NATIVE, folder / "native")
    path = source / file
    text = path.read_text(encoding="utf-8")
    for old, new in edits:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path.write_text(text, encoding="utf-8")
    return source


class Mutant(NamedTuple):
    """A text of a file of native/, and what stands there in its place."""

    file: str
    old: str
    new: str

    def planted(self, folder: Path) -> Path:
        return planted(folder, self.file, (self.old, self.new))


@cache
def _kept() -> tempfile.TemporaryDirectory[str]:
    """Where objects are kept as long as this process lives."""
    return tempfile.TemporaryDirectory(prefix="optcc-objects-")


def compiled(files: Sequence[Path], source: Path, flags: Sequence[str]) -> list[str]:
    """Objects of these files, which may include headers of the folder `source`. A file with the same text, headers
    and flags as an earlier one is not compiled again."""
    headers = b"".join(path.read_bytes() for path in sorted(source.rglob("*.h")))
    objects = []
    for file in files:
        key = hashlib.sha256(repr(flags).encode() + headers + file.read_bytes()).hexdigest()
        made = Path(_kept().name) / f"{file.stem}-{key}.o"
        if not made.exists():
            command = ["cc", *flags, f"-I{source}", "-c", str(file), "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
            assert done.returncode == 0, done.stderr
        objects.append(str(made))
    return objects


def build(
    folder: Path,
    source: Path = NATIVE,
    flags: Sequence[str] = ("-O2",),
    more: Sequence[Path] = (),
    link: Sequence[str] = (),
) -> Path:
    """The engine, and more files, as a shared library; a warning is a failure."""
    library = folder / "engine.so"
    objects = compiled([*sorted(source.glob("*.c")), *more], source, (*STRICT, *flags))
    command = ["cc", "-shared", *flags, *link, *objects, "-o", str(library), "-lm", "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return library
