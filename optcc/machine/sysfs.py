"""A sysfs, this machine's or a copy: attributes, folders, and links which lead nowhere out of it.

Links are followed here, not by the system. So a foreign copy, a folder on disk or a tarball in memory, can neither lead
out of itself nor round in circles. Paths are relative to the root, such as ``class/infiniband/mlx5_0``.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tarfile
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from optcc.errors import InputError
from optcc.files.reading import kind_of, open_regular, read_regular

PAGE = 4096
"""Bytes: no attribute is longer than a page."""

_MOST_LINKS = 40  # as Linux
_MOST_NAMES = 65536  # in one folder: a server has tens of devices
_LONGEST_LINK = 512
_PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]", re.I)
_LINK_AS_TEXT = re.compile(rb"(?:\.\./)+[\w.:/@+-]+|(?:\.\./)*\.\.")
_UNUSABLE = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EMFILE, errno.ENFILE)


@dataclass(frozen=True)
class SysfsEntry:
    """What is at a place: ``file``, ``folder``, ``link`` (to `target`), or else what it is, such as ``a FIFO``."""

    kind: str
    target: str = ""


class Sysfs(ABC):
    """A sysfs of either kind. `where` names it in errors."""

    def __init__(self, where: str) -> None:
        self.where = where

    @abstractmethod
    def look(self, place: str) -> SysfsEntry | None:
        """What is at `place`, in whose folders are no links; None for nothing."""

    @abstractmethod
    def content(self, place: str) -> bytes:
        """Up to a page and a byte of the file at `place`, likewise. Raises OSError."""

    @abstractmethod
    def listing(self, place: str) -> list[str]:
        """The names in the folder at `place`, likewise."""

    @abstractmethod
    def below(self, path: str) -> Sysfs:
        """The same with the folder `path` as its root."""

    def real(self, path: str) -> str | None:
        """`path` without links; None where nothing is there, or outside. Raises InputError for links in circles."""
        todo, done, links = path.split("/")[::-1], list[str](), 0
        while todo:
            part = todo.pop()
            if part in ("", "."):
                continue
            if part == "..":
                if not done:
                    return None
                done.pop()
                continue
            entry = self.look("/".join([*done, part]))
            if entry is None:
                return None
            if entry.kind != "link":
                done.append(part)
                continue
            links += 1
            if links > _MOST_LINKS:
                raise self._error(path, "a link that leads in a circle", "a link to a device")
            target = entry.target
            if target.startswith("/"):
                if not target.startswith("/sys/"):
                    return None
                target, done = target.removeprefix("/sys/"), []
            todo.extend(target.split("/")[::-1])
        return "/".join(done)

    def names(self, path: str) -> list[str]:
        """The names in a folder, sorted; none where it is not there. Raises InputError where it is no folder."""
        place = self.real(path)
        if place is None:
            return []
        entry = self.look(place) if place else SysfsEntry("folder")
        if entry is None or entry.kind != "folder":
            raise self._error(path, "not a folder", "a folder", entry.kind if entry else "nothing")
        found = self.listing(place)
        if len(found) > _MOST_NAMES:
            raise self._error(path, "too many names", f"at most {_MOST_NAMES}")
        return sorted(found)

    def text(self, path: str) -> str:
        """The attribute; empty where it is not there or the driver refuses it, as unused entries of GID tables are.

        Copies may be padded with zeros, as the kernel tells a page for the length of every file. Raises InputError for
        what is no attribute: a folder, a FIFO, a device, more than a page.
        """
        place = self.real(path)
        entry = None if place is None else self.look(place)
        if place is None or entry is None:
            return ""
        if entry.kind != "file":
            raise self._error(path, "not an attribute", "a regular file", entry.kind)
        try:
            data = self.content(place).rstrip(b"\0")
        except OSError as error:
            if error.errno in _UNUSABLE:
                raise self._error(path, "cannot be read", "a regular file", error.strerror) from None
            return ""
        if len(data) > PAGE:
            raise self._error(path, "not an attribute", f"at most {PAGE} bytes", "more")
        return data.decode("utf-8", "replace").strip()

    def _error(self, path: str, what: str, expected: str, got: str | None = None) -> InputError:
        return InputError(what, where=f"{self.where}: {path}"[:400], expected=expected, got=got)


class Folder(Sysfs):
    """A sysfs on disk: ``/sys`` itself, or a folder with a copy."""

    def __init__(self, root: str | Path) -> None:
        super().__init__(str(root))
        self._root = Path(root)
        self._seen: dict[str, SysfsEntry | None] = {}

    def look(self, place: str) -> SysfsEntry | None:
        if place not in self._seen:
            self._seen[place] = self._look(place)
        return self._seen[place]

    def _look(self, place: str) -> SysfsEntry | None:
        path = self._root / place
        try:
            found = path.lstat()
            if stat.S_ISLNK(found.st_mode):
                return SysfsEntry("link", os.readlink(path))
            if stat.S_ISREG(found.st_mode) and found.st_size <= _LONGEST_LINK:
                with suppress(OSError):  # which `text` tells, where somebody wants it
                    return link_as_text(read_regular(path, PAGE))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise self._error(place[:200], "cannot be read", "a copy of sysfs", error.strerror) from None
        except ValueError:  # a zero byte in a name
            return None
        return SysfsEntry("folder" if stat.S_ISDIR(found.st_mode) else kind_of(found.st_mode) or "file")

    def content(self, place: str) -> bytes:
        return read_regular(self._root / place, PAGE + 1)

    def listing(self, place: str) -> list[str]:
        try:
            with os.scandir(self._root / place) as found:
                return [entry.name for entry in islice(found, _MOST_NAMES + 1)]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise self._error(place, "cannot be read", "a folder", error.strerror) from None

    def below(self, path: str) -> Folder:
        return Folder(self._root / path)


def link_as_text(data: bytes) -> SysfsEntry:
    """A file, or the link that it was before a copy made text of it, as zip and git on Windows do."""
    found = _LINK_AS_TEXT.fullmatch(data.rstrip(b"\0\n"))
    return SysfsEntry("link", found[0].decode("ascii", "replace")) if found else SysfsEntry("file")


def pci_place(place: str | None) -> str:
    """Of a place below ``devices``, the part up to its last PCI device; empty where it is on none."""
    parts = (place or "").split("/")
    last = max((i for i, part in enumerate(parts) if _PCI.fullmatch(part)), default=None)
    return "" if last is None else "/".join(parts[: last + 1])


def pci_bridges(place: str) -> list[str]:
    """The places of the PCI bridges above the PCI device at `place`, the outermost first."""
    parts = place.split("/")
    return ["/".join(parts[: i + 1]) for i, part in enumerate(parts[:-1]) if _PCI.fullmatch(part)]


MAX_MEMBERS = 200_000
MAX_TOTAL = 2**30
"""Bytes that it may unfold to."""
MAX_KEPT = 2**26
"""Bytes of attributes that are kept, of at most a page each: those of a server are some 5 MB."""
MAX_NAME = 512
MAX_HEADER = 65536
_TOO_LONG = bytes([1]) * (PAGE + 1)
_UNREADABLE = (tarfile.TarError, OSError, EOFError, ValueError, RecursionError)


class Packed(Sysfs):
    """The members of a tarball: by place, what is there; and the attributes' contents."""

    def __init__(self, where: str, entries: dict[str, SysfsEntry], contents: dict[str, bytes]) -> None:
        super().__init__(where)
        self._entries, self._contents = entries, contents
        self._inside: dict[str, list[str]] = {}
        for place in entries:
            folder, _, name = place.rpartition("/")
            self._inside.setdefault(folder, []).append(name)

    def look(self, place: str) -> SysfsEntry | None:
        return self._entries.get(place)

    def content(self, place: str) -> bytes:
        return self._contents[place]

    def listing(self, place: str) -> list[str]:
        return self._inside.get(place, [])

    def below(self, path: str) -> Packed:
        if not path:
            return self
        start = len(path) + 1
        entries = {p[start:]: entry for p, entry in self._entries.items() if p.startswith(path + "/")}
        contents = {p[start:]: data for p, data in self._contents.items() if p.startswith(path + "/")}
        return Packed(f"{self.where}: {path}", entries, contents)


class _Member(tarfile.TarInfo):
    """Refuses by the header alone what `tarfile` reads whole before there is a member: long names, maps of holes."""

    def _proc_member(self, archive: tarfile.TarFile) -> tarfile.TarInfo:
        # In every version this reads what belongs to a header; what parses the header itself differs between them.
        if self.type in (b"x", b"g", b"L", b"K", b"X") and not 0 <= self.size <= MAX_HEADER:  # below 0: all
            raise tarfile.ReadError("a name too long")
        if self.type == b"S":
            raise tarfile.ReadError("a file with holes")
        if self.size < 0:
            raise tarfile.ReadError("a size below 0")
        made: tarfile.TarInfo = super()._proc_member(archive)  # type: ignore[misc]
        return made

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a file with holes")


def is_tarball(path: str) -> bool:
    """Whether a regular file begins as a tarball, packed or not. Raises OSError where it is none that can be read."""
    with open_regular(path) as file, suppress(*_UNREADABLE), tarfile.open(fileobj=file, mode="r:*", tarinfo=_Member):
        return True
    return False


def read_tarball(path: str, copy_hint: str) -> Packed:
    """Attributes and links. Raises InputError for what is no tarball, or too large; `copy_hint` is the way out."""
    try:
        with open_regular(path) as file, tarfile.open(fileobj=file, mode="r:*", tarinfo=_Member) as archive:
            return _read(archive, path, copy_hint)
    except _UNREADABLE as error:
        raise InputError("not a tarball that can be read", where=path, got=str(error)[:120], hint=copy_hint) from None


def _read(archive: tarfile.TarFile, path: str, copy_hint: str) -> Packed:
    entries: dict[str, SysfsEntry] = {}
    contents: dict[str, bytes] = {}
    kept = 0
    for count, member in enumerate(archive):
        end = member.offset_data + member.size  # which has to be unfolded to come to the next
        if max(count, len(entries)) >= MAX_MEMBERS or end > MAX_TOTAL or kept > MAX_KEPT:
            limits = f"{MAX_MEMBERS} files and folders, {MAX_TOTAL >> 30} GiB, {MAX_KEPT >> 20} MiB of attributes"
            raise InputError("too large", where=path, expected=f"at most {limits}", hint=copy_hint)
        archive.pax_headers = {}
        archive.members.clear()  # type: ignore[attr-defined]  # all that were read, with their attributes
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if not parts or ".." in parts or max(len(member.name), len(member.linkname)) > MAX_NAME:
            continue
        place = "/".join(parts)
        entry = _entry(member)
        if entry.kind == "file" and member.size <= PAGE:
            file = archive.extractfile(member)
            contents[place] = b"" if file is None else file.read(PAGE).rstrip(b"\0")
            kept += len(contents[place])
            entry = link_as_text(contents[place])
        elif entry.kind == "file":
            contents[place] = _TOO_LONG  # no attribute: refused where one is looked for
        entries[place] = entry
        while len(parts) > 1:  # folders that have no member of their own
            parts.pop()
            entries.setdefault("/".join(parts), SysfsEntry("folder"))
    return Packed(path, entries, contents)


def _entry(member: tarfile.TarInfo) -> SysfsEntry:
    if member.issym():
        return SysfsEntry("link", member.linkname)
    kinds = [
        (member.isdir(), "folder"),
        (member.isfile(), "file"),
        (member.isfifo(), "a FIFO"),
        (member.isdev(), "a device"),
    ]
    return SysfsEntry(next((kind for fits, kind in kinds if fits), "a hard link"))
