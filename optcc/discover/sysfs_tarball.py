"""A tarball of a copy of sysfs, read into memory. Nothing is unpacked: no file of it ever gets a place on the disk.

`tarfile` finds the members; their contents are read here, attributes alone, and links are kept as texts, which `Sysfs`
follows within the tarball.
"""

from __future__ import annotations

import tarfile
from contextlib import suppress

from optcc.errors import InputError
from optcc.files.regular import open_regular
from optcc.machine.sysfs import PAGE, Sysfs, SysfsEntry, link_as_text

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
        """See `Sysfs`."""
        return self._entries.get(place)

    def content(self, place: str) -> bytes:
        """See `Sysfs`."""
        return self._contents[place]

    def listing(self, place: str) -> list[str]:
        """See `Sysfs`."""
        return self._inside.get(place, [])

    def below(self, path: str) -> Packed:
        """See `Sysfs`."""
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
