"""A tarball of a copy of sysfs, read into memory. Nothing is unpacked: no file of it ever gets a place on the disk.

`tarfile` finds the members; their contents are read here, attributes alone, and links are kept as texts, which `Sysfs`
follows within the tarball.
"""

from __future__ import annotations

import io
import tarfile
from contextlib import suppress

from optcc.errors import InputError
from optcc.regular_files import read_regular
from optcc.sysfs import PAGE, Entry, Sysfs, link_as_text

MAX_MEMBERS = 200_000
MAX_FILE = 2**28
"""Bytes of the tarball itself: a server's sysfs is 1 MB packed, and 100 MB plain, with 512 for each name."""
MAX_TOTAL = 2**30
"""Bytes that it may unfold to."""
MAX_KEPT = 2**26
"""Bytes of attributes that are kept, of at most a page each: those of a server are some 5 MB."""
MAX_NAME = 512
MAX_HEADER = 65536
_MAGIC = (b"\x1f\x8b", b"BZh", b"\xfd7zXZ\x00")
_UNREADABLE = (tarfile.TarError, OSError, EOFError, ValueError, RecursionError)


class Packed(Sysfs):
    """The members of a tarball: by place, what is there; and the attributes' contents."""

    def __init__(self, where: str, entries: dict[str, Entry], contents: dict[str, bytes]) -> None:
        super().__init__(where)
        self._entries, self._contents = entries, contents
        self._inside: dict[str, list[str]] = {}
        for place in entries:
            folder, _, name = place.rpartition("/")
            self._inside.setdefault(folder, []).append(name)

    def look(self, place: str) -> Entry | None:
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

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        made = super().frombuf(buf, encoding, errors)
        if made.type in (b"x", b"g", b"L", b"K", b"X") and not 0 <= made.size <= MAX_HEADER:  # below 0: all
            raise tarfile.ReadError("a name too long")
        if made.type == b"S":
            raise tarfile.ReadError("a file with holes")
        return made

    def _proc_gnusparse_10(self, *_: object) -> None:
        raise tarfile.ReadError("a file with holes")


def is_tarball(path: str) -> bool:
    """Whether a regular file begins as a tarball, packed or not. Raises OSError where it is none that can be read."""
    start = read_regular(path, 1024)
    if not start.startswith(_MAGIC) and start[257:262] != b"ustar" and not _old_header(start):
        return False
    with suppress(*_UNREADABLE), open(path, "rb") as file, tarfile.open(fileobj=file, mode="r:*", tarinfo=_Member):
        return True
    return False


def _old_header(start: bytes) -> bool:
    """Formats before 1988 have no name; the sum of their header is right."""
    with suppress(tarfile.TarError, ValueError):
        return bool(tarfile.TarInfo.frombuf(start[:512], "utf-8", "surrogateescape"))
    return False


def read_tarball(path: str, copy_hint: str) -> Packed:
    """Attributes and links. Raises InputError for what is no tarball, or too large; `copy_hint` is the way out."""
    try:
        data = read_regular(path, MAX_FILE + 1)
        if len(data) > MAX_FILE:
            raise InputError("too large", where=path, expected=f"at most {MAX_FILE} bytes", got="more", hint=copy_hint)
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:*", tarinfo=_Member) as archive:
            return _read(archive, path, copy_hint)
    except _UNREADABLE as error:
        raise InputError("not a tarball that can be read", where=path, got=str(error)[:120], hint=copy_hint) from None


def _read(archive: tarfile.TarFile, path: str, copy_hint: str) -> Packed:
    entries: dict[str, Entry] = {}
    contents: dict[str, bytes] = {}
    kept = 0
    for count, member in enumerate(archive):
        end = member.offset_data + member.size  # which has to be unfolded to come to the next
        if count >= MAX_MEMBERS or end > MAX_TOTAL or kept > MAX_KEPT:
            expected = f"{MAX_MEMBERS} files, {MAX_TOTAL >> 30} GiB, {MAX_KEPT >> 20} MiB of attributes at most"
            raise InputError("too large", where=path, expected=expected, hint=copy_hint)
        if member.size < 0:
            raise tarfile.ReadError("a size below 0")
        archive.pax_headers = {}
        archive.members.clear()  # type: ignore[attr-defined]  # all that were read, with their attributes
        parts = [part for part in member.name.split("/") if part not in ("", ".")]
        if not parts or ".." in parts or len(member.name) > MAX_NAME or len(member.linkname) > MAX_NAME:
            continue
        place = "/".join(parts)
        entry = _entry(member)
        if entry.kind == "file" and member.size <= PAGE:
            file = archive.extractfile(member)
            contents[place] = b"" if file is None else file.read(PAGE).rstrip(b"\0")
            kept += len(contents[place])
            entry = link_as_text(contents[place])
        elif entry.kind == "file":
            contents[place] = b"-" * (PAGE + 1)  # no attribute: refused where one is looked for
        entries[place] = entry
        while len(parts) > 1:  # folders that have no member of their own
            parts.pop()
            entries.setdefault("/".join(parts), Entry("folder"))
    return Packed(path, entries, contents)


def _entry(member: tarfile.TarInfo) -> Entry:
    if member.issym():
        return Entry("link", member.linkname)
    kinds = ((member.isdir(), "folder"), (member.isfile(), "file"), (member.isfifo(), "a FIFO"), (member.isdev(), "a device"))
    return Entry(next((kind for fits, kind in kinds if fits), "a hard link"))
