"""The played libibverbs, compiled: once for each version of its source, into the user's cache."""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from optcc.errors import InputError

SOURCE = Path(__file__).parent / "source"
NAME = "libibverbs.so.1"
_HANDLE, _GPU = "played.so", "played_gpu"
"""What makes and changes fabrics, by itself: whoever loads it has not loaded a libibverbs; the process that copies GPU
memory for a NIC."""
_FILES = ("fabric.c", "nic.c", "verbs.c", "gpu.c")
_FLAGS = ("-std=gnu11", "-O2", "-g", "-Wall", "-Wextra", "-Wshadow", "-pthread")
_BOUND_S = 300


def build(folder: Path, extra: Sequence[str] = ()) -> Path:
    """Compile into `folder`, which becomes one for LD_LIBRARY_PATH. Raises InputError where there is no compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise InputError(
            "no C compiler", where="optcc fabric", expected="cc", got="none on the path", hint="apt install gcc"
        )
    folder.mkdir(parents=True, exist_ok=True)
    shared = ("-shared", "-fPIC")
    link = (*shared, f"-Wl,--version-script={SOURCE / 'verbs.map'}", f"-Wl,-soname,{NAME}")
    made_of = ((_HANDLE, _FILES[:1], shared), (_GPU, ("played_gpu.c", "fabric.c"), ()), (NAME, _FILES, (*link, *extra)))
    with tempfile.TemporaryDirectory(dir=folder) as inside:
        for name, files, how in made_of:
            made = Path(inside) / name
            command = [compiler, *_FLAGS, *how, *(str(SOURCE / file) for file in files), "-ldl", "-o", str(made)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=_BOUND_S, check=False)
            if done.returncode:
                raise InputError(
                    "does not compile", where=str(SOURCE), expected="a C11 compiler", got=done.stderr[:400]
                )
            made.rename(folder / name)
    other = folder / "libibverbs.so"  # some programs ask for this name first
    if not other.is_symlink():
        other.symlink_to(NAME)
    return folder


@cache
def library() -> Path:
    """The folder with the library, compiled where it is not yet: three seconds. Raises InputError."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    text = b"".join(path.read_bytes() for path in sorted(SOURCE.iterdir()))
    folder = home / "optcc" / f"fabric-{hashlib.sha256(text).hexdigest()[:16]}"
    return folder if (folder / "libibverbs.so").is_symlink() else build(folder)


@cache
def calls() -> ctypes.CDLL:
    """What makes and changes fabrics."""
    return ctypes.CDLL(str(library() / _HANDLE))
