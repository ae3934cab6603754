"""The kinds of evidence: how each is told by its content, and what reads it. A new kind is a file and a line here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from optcc.diagnose.calibration_file import looks_like_calibration, read_calibration
from optcc.diagnose.causes import causes_in
from optcc.diagnose.counters import Reading, counted_between, read_counters
from optcc.diagnose.evidence import Evidence
from optcc.diagnose.inspector import looks_like_inspector, read_inspector
from optcc.diagnose.link_state import read_links
from optcc.diagnose.log_evidence import read_log
from optcc.diagnose.nccl_tests import looks_like_tests, read_tests
from optcc.diagnose.ports import NicDirections
from optcc.diagnose.ras import looks_like_ras, read_ras
from optcc.discover.nccl_log import looks_like_log
from optcc.discover.pasted import without_colours
from optcc.discover.sysfs_tree import is_sysfs, open_sysfs
from optcc.errors import InputError
from optcc.files.reading import is_stdin, read_file, shown
from optcc.machine.sysfs import Sysfs

MOST_BYTES = 2**28
"""Of one file: an hour of NCCL's log at INFO from a thousand ranks has some 100 MB."""
EXPECTED = (
    "nccl-tests' output, NCCL's log, NCCL Inspector's JSON lines, what ncclras prints, a file of optcc calibrate, "
    "or SERVER=DIR with a copy of its sysfs"
)


@dataclass(frozen=True)
class Reader:
    """`fits` : whether a text is of this kind; `read` : (text, source, ports) -> what it says."""

    name: str
    fits: Callable[[str], bool]
    read: Callable[[str, str, NicDirections], Evidence]


READERS = (
    Reader("nccl-tests", looks_like_tests, read_tests),
    Reader("NCCL's log", looks_like_log, read_log),
    Reader("RAS", looks_like_ras, read_ras),
    Reader("optcc calibrate", looks_like_calibration, read_calibration),
)
"""Every one that fits reads: a log may hold a test's table. NCCL Inspector's files are read together, below."""


def gather(sources: Sequence[str], ports: NicDirections, interval_s: float | None = None) -> Evidence:
    """All that `sources` say: paths, ``SERVER=DIR`` for a server's sysfs; the same server twice gives counters between.

    interval_s : seconds between the two
    Raises InputError for what is none of the kinds, and for hosts that the topology does not have.
    """
    found, inspected = list[Evidence](), list[tuple[str, str]]()
    trees: dict[str, list[tuple[str, Sysfs]]] = {}
    for source in sources:
        server, path = _of_server(source, ports)
        if server is not None:
            trees.setdefault(server, []).append((path, open_sysfs(path)))
            continue
        text = without_colours(_text(path))
        if looks_like_inspector(text):
            inspected.append((shown(path), text))
        else:
            found.append(read_text(text, shown(path), ports))
    if inspected:
        found.append(read_inspector(inspected, ports))
    for server, copies in trees.items():
        found.append(of_trees(server, copies, interval_s, ports))
    return Evidence.together(found)


def watched(sources: Sequence[str], ports: NicDirections, seconds: float, wait: Callable[[float], None]) -> Evidence:
    """As `gather`, but each server's sysfs is read twice, `seconds` apart, which `wait` lets pass. Raises InputError
    where no source is one."""
    live = [(server, path) for source in sources for server, path in [_of_server(source, ports)] if server is not None]
    if not live:
        raise InputError("nothing to watch", where="--watch", expected="SERVER=/sys among the evidence", got="none")
    before = {server: read_counters(open_sysfs(path)) for server, path in live}
    started = time.monotonic()
    wait(seconds)
    found = []
    for server, path in live:
        tree = open_sysfs(path)
        took = time.monotonic() - started
        found.append(counted_between(before[server], read_counters(tree), took, server, path, ports))
        found.append(read_links(tree, server, path, ports))
    rest = [source for source in sources if _of_server(source, ports)[0] is None]
    return Evidence.together([*found, gather(rest, ports)])


def read_text(text: str, source: str, ports: NicDirections) -> Evidence:
    """What one file says, by every reader that it fits. Raises InputError where none does."""
    found = [reader.read(text, source, ports) for reader in READERS if reader.fits(text)]
    if causes := causes_in(text, source):
        found.append(Evidence(causes=causes))
    if not found:
        got = text.strip()[:40] or "nothing"
        raise InputError("no evidence that is known", where=source, expected=EXPECTED, got=got)
    return Evidence.together(found)


def of_trees(
    server: str, copies: Sequence[tuple[str, Sysfs]], interval_s: float | None, ports: NicDirections
) -> Evidence:
    """Links as the last copy has them, and what was counted between the first and the last."""
    if len(copies) > 2:
        raise InputError("too many copies of one server", where=server, expected="one or two", got=len(copies))
    path, last = copies[-1]
    before: Reading | None = read_counters(copies[0][1]) if len(copies) == 2 else None
    counted = counted_between(before, read_counters(last), interval_s, server, path, ports)
    return Evidence.together([read_links(last, server, path, ports), counted])


def _of_server(source: str, ports: NicDirections) -> tuple[str | None, str]:
    """``server1=DIR`` as server and path; a directory or tarball without one is the only server's."""
    name, equals, path = source.partition("=")
    if equals and not Path(source).exists() and (server := ports.server(name)) is not None:
        return server, path
    if not is_stdin(source) and is_sysfs(source):
        servers = [server.name for server in ports.cluster.servers]
        if len(servers) > 1:
            raise InputError("whose sysfs?", where=source, expected=f"SERVER={source}", got=f"{len(servers)} servers")
        return servers[0], source
    return None, source


def _text(path: str) -> str:
    data = read_file(path, MOST_BYTES, what="file of evidence", expected=EXPECTED)
    return data.decode("utf-8", "replace")
