"""Functions that numba compiles: once on a machine, by one process, for all that come after it; and people are told.

Compiled code is kept in files of
this user, in folders that no other user can write, for they are executed. The first folder that can be written takes a
file; all are looked at when one is wanted. So a home that is full, or cannot be written, costs nothing but another
folder. A file begins with a digest: one that is damaged, cut short or of other sources is no file.
"""

from __future__ import annotations

import fcntl
import os
import pickle
import stat
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from secrets import token_hex
from typing import Any, NamedTuple, TypeVar

VARIABLE = "NUMBA_CACHE_DIR"
TEMPORARY = ("/tmp", "/var/tmp", "/dev/shm")


class CacheFolder(NamedTuple):
    """A folder; mode : it is made with; asked : by its user, who answers for the folders above it."""

    folder: Path
    mode: int = 0o700
    asked: bool = False


def cache_candidates(environ: Mapping[str, str], user: int) -> Iterator[CacheFolder]:
    """NUMBA_CACHE_DIR, the user's cache, a private folder among temporary ones: in this order."""
    if environ.get(VARIABLE):
        yield CacheFolder(Path(environ[VARIABLE]).absolute() / "optcc", 0o755, asked=True)
    home = Path(environ.get("HOME") or os.path.expanduser("~"))
    shared = Path(environ.get("XDG_CACHE_HOME") or home / ".cache")
    if shared.is_absolute() and (environ.get("XDG_CACHE_HOME") or home.is_dir()):
        yield CacheFolder(shared / "optcc")
    for folder in (environ.get("TMPDIR"), *TEMPORARY):
        if folder and Path(folder).is_absolute() and Path(folder).is_dir():
            yield CacheFolder(Path(folder) / f"optcc-{user}")


def cache_places() -> tuple[Path, ...]:
    """Folders that are there, or could be made, and that nobody but this user or root can write."""
    said = tuple((name, os.environ.get(name, "")) for name in (VARIABLE, "XDG_CACHE_HOME", "HOME", "TMPDIR"))
    return _cache_places(said, os.geteuid())


@cache
def _cache_places(said: tuple[tuple[str, str], ...], user: int) -> tuple[Path, ...]:
    return tuple(dict.fromkeys(one.folder for one in cache_candidates(dict(said), user) if _ours(one, user)))


def _ours(one: CacheFolder, user: int) -> bool:
    """Whether the folder is there, or has been made, and its files are this user's or root's to change."""
    try:
        missing = [folder for folder in (one.folder, *one.folder.parents) if not folder.exists()]
        for folder in reversed(missing):
            with suppress(FileExistsError):  # by another process of the job
                folder.mkdir(one.mode)
        found = one.folder.lstat()
        return (
            stat.S_ISDIR(found.st_mode)
            and found.st_uid in (0, user)
            and not found.st_mode & 0o022
            and (one.asked or all(_stays(folder) for folder in one.folder.resolve().parents))
        )
    except (OSError, RuntimeError):  # a loop of links
        return False


def _stays(folder: Path) -> bool:
    """Whether others cannot put another folder in the place of one that is in here."""
    mode = folder.stat().st_mode
    return not mode & 0o022 or bool(mode & stat.S_ISVTX)


def read_kept(name: str, stamp: bytes) -> bytes | None:
    """What was kept under this name for these sources; None: nothing, or it is damaged."""
    for place in cache_places():
        with suppress(OSError):
            data = (place / name).read_bytes()
            if data[:32] == sha256(stamp + data[32:]).digest():
                return data[32:]
    return None


def write_kept(name: str, stamp: bytes, data: bytes) -> None:
    """Keep it, whole or not at all. Raises OSError where no folder takes it."""
    refused: OSError = OSError("no folder can be written")
    for place in cache_places():
        unfinished = place / f"{name}.{token_hex(8)}"
        try:
            unfinished.write_bytes(sha256(stamp + data).digest() + data)
            unfinished.replace(place / name)
            return
        except OSError as error:
            refused = error
            with suppress(OSError):
                unfinished.unlink()
    raise refused


def lock_file(name: str) -> int | None:
    """A descriptor of a file for processes of this user to lock, in the first folder that has it; None: none has."""
    for place in cache_places():
        with suppress(OSError):
            return os.open(place / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    return None


# mypy: disable-error-code="attr-defined, no-untyped-call"


Function = TypeVar("Function", bound=Callable[..., Any])

LONGEST_S = 300.0
"""To wait for another process that compiles; then this one does it, too."""
LOOK_S = 0.1


def say(text: str) -> None:
    """To whoever waits: this may be a program of others, and there is nobody else to tell."""
    with suppress(OSError, ValueError, AttributeError):  # no stderr, or nobody reads it
        print(f"optcc: {text}", file=sys.stderr, flush=True)


class Kernels:
    """Functions that are compiled together.

    name : of their files; what : they are for, in words; seconds : of processor, about, to compile them all
    """

    def __init__(self, name: str, what: str, seconds: int) -> None:
        self.name, self._what, self._seconds = name, what, seconds
        self._lock: int | None = None
        self._depth = 0
        self._told = self._waited = self._refused = False

    def compiled(self, **options: Any) -> Callable[[Function], Function]:
        """A decorator: numba's njit with these options."""
        from numba import njit

        def compiled(function: Function) -> Function:
            made = njit(**options)(function)
            if made is not function:  # which it is under NUMBA_DISABLE_JIT
                compile_it = made.compile
                made._cache = _Kept(self, function)
                made.compile = lambda signature: self._compile(compile_it, signature)
            return made  # type: ignore[no-any-return, unused-ignore]

        return compiled

    def callback(self, signature: str, function: Callable[..., Any]) -> Any:
        """numba's cfunc of a function."""
        from numba.core.ccallback import CFunc
        from numba.core.sigutils import normalize_signature

        made = CFunc(function, normalize_signature(signature), locals={}, options={})
        made._cache = _Kept(self, function)
        self._compile(made.compile)
        return made

    def alone(self) -> None:
        """Until the function that is being compiled is kept, no other process compiles these: it waits, and says so."""
        if self._lock is not None or (lock := lock_file(self.name)) is None:
            return
        self._lock = lock
        end = time.monotonic() + LONGEST_S
        while _held_by_another(lock) and time.monotonic() < end:
            if not self._waited:
                say(f"another process compiles {self._what}: {self._long()}")
            self._waited = True
            time.sleep(LOOK_S)

    def announce(self) -> None:
        """That this process compiles, once."""
        if not self._told:
            say(f"compiling {self._what}: {self._long()}")
        self._told = True

    def refused(self, error: OSError) -> None:
        """That what is compiled cannot be kept, once."""
        if not self._refused:
            why = error.strerror or str(error)
            say(f"compiled code is kept nowhere ({why}): each process makes it anew. {VARIABLE} names a folder")
        self._refused = True

    def _compile(self, compile_it: Callable[..., Any], *args: Any) -> Any:
        with self.together():
            return compile_it(*args)

    def _long(self) -> str:
        return f"about {self._seconds} s of processor, once on this machine"

    @contextmanager
    def together(self) -> Iterator[None]:
        """What is compiled in here is compiled by one process: none takes over in between."""
        from numba.core.compiler_lock import global_compiler_lock

        with global_compiler_lock:
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if not self._depth and self._lock is not None:
                    os.close(self._lock)
                    self._lock = None


def _held_by_another(lock: int) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no locks on this file system: some may compile at once
        return False
    return False


def is_kept(function: Any, signature: tuple[Any, ...]) -> bool:
    """Whether a function has been compiled for arguments of these types, on this machine."""
    cache: _Kept = function._cache
    return cache.found(signature, function.targetctx) is not None


class _Kept:
    """In the place of numba's cache of one function, which writes beside the sources and fails where it cannot.

    Compiled code depends on one file, where the function is, and on the versions and the processor.
    """

    cache_path = None

    def __init__(self, kernels: Kernels, function: Callable[..., Any]) -> None:
        import llvmlite
        import numba
        from numba.core.serialize import dumps

        code = function.__code__
        cells = [cell.cell_contents for cell in function.__closure__ or ()]
        self._kernels = kernels
        self._about = (code.co_filename, function.__qualname__, code.co_firstlineno, code.co_code, dumps(cells))
        source = b""
        with suppress(OSError):  # of an archive, say
            source = Path(code.co_filename).read_bytes()
        versions = (numba.__version__, llvmlite.__version__, sysconfig.get_config_var("SOABI"))
        self._stamp = repr(versions).encode() + source

    def load_overload(self, signature: Any, target: Any) -> Any:
        """As compiled before. None: it has to be compiled, and no other process does so now."""
        target.refresh()
        data = self.found(signature, target)
        if data is None:
            self._kernels.alone()
            data = self.found(signature, target)
        if data is None:
            self._kernels.announce()
        return data

    def found(self, signature: Any, target: Any) -> Any:
        """As compiled before, or None."""
        from numba.core.compiler import CompileResult

        data = read_kept(self._name(signature, target.codegen()), self._stamp)
        if data is None:
            return None
        try:
            return CompileResult._rebuild(target, *pickle.loads(data))
        except Exception:  # whole, and yet of no use: a type that it names is gone
            return None

    def save_overload(self, signature: Any, compiled: Any) -> None:
        """Keep it, where that can be."""
        from numba.core.serialize import dumps

        try:
            write_kept(self._name(signature, compiled.codegen), self._stamp, dumps(compiled._reduce()))
        except OSError as error:
            self._kernels.refused(error)

    def flush(self) -> None:
        """Nothing: numba calls it when it compiles all anew."""

    def _name(self, signature: Any, codegen: Any) -> str:
        about = repr((self._about, signature, codegen.magic_tuple()))
        return f"{self._kernels.name}.{self._about[1].split('.')[-1]}.{sha256(about.encode()).hexdigest()[:24]}"
