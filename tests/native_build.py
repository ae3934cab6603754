"""Libraries of native/ with planted bugs, and without: in a run of tests what is not changed is compiled once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from shutil import copytree
from typing import NamedTuple

NATIVE = Path(__file__).resolve().parent.parent / "native"
STRICT = ("-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-ffp-contract=off", "-fPIC")
LOOSE = ("-O1", "-Wno-error")
"""For code with a bug in it, which may leave something unused."""


class Mutant(NamedTuple):
    """A text of a file of native/, and what stands there in its place."""

    file: str
    old: str
    new: str

    def planted(self, folder: Path) -> Path:
        return planted(folder, self)


def planted(folder: Path, *mutants: Mutant) -> Path:
    """A copy of native/ below `folder`, with these in it."""
    source = copytree(NATIVE, folder / "native")
    for mutant in mutants:
        text = (source / mutant.file).read_text(encoding="utf-8")
        assert text.count(mutant.old) == 1, mutant.old
        (source / mutant.file).write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return source


KEPT = "OPTCC_TESTS_COMPILED"
"""Names, to all processes of a run of tests, the folder in which they keep what is compiled (tests/conftest.py)."""


@cache
def _own() -> tempfile.TemporaryDirectory[str]:
    """Of a process that no run of tests has started, as long as it lives."""
    return tempfile.TemporaryDirectory(prefix="optcc-objects-")


def kept() -> Path:
    """Where what is compiled is kept."""
    return Path(os.environ.get(KEPT) or _own().name)


@contextmanager
def missing(made: Path) -> Iterator[bool]:
    """Whether the caller is to make this file; who else wants it waits meanwhile."""
    with made.with_name(f"{made.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield not made.exists()


def compiled(files: Sequence[Path], source: Path, flags: Sequence[str]) -> list[str]:
    """Objects of these files, which may include headers of the folder `source`. A file with the same text, headers
    and flags as an earlier one is not compiled again."""
    headers = b"".join(path.read_bytes() for path in sorted(source.rglob("*.h")))
    objects = []
    for file in files:
        key = hashlib.sha256(repr(flags).encode() + headers + file.read_bytes()).hexdigest()
        made = kept() / f"{file.stem}-{key}.o"
        with missing(made) as wanted:
            if wanted:
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
