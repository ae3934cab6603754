"""What optcc's own jobs say of a rank that has failed: in the errors that their ranks raise, and in their logs.

It is the verdict, the same on all ranks, so that the files of any rank will do. It tells of a rank, and so of a server,
never of a NIC.
"""

from __future__ import annotations

import re

from optcc.diagnose.evidence import Evidence, NicDirections, Sign

_VERDICT = re.compile(
    r"(?:^|RankFailedError: |verdict +|\boptcc\.\S{1,60}[: ]+(?:\w+[: ]+)?)"
    r"(?P<verdict>rank (?P<rank>\d{1,9}) (?:failed: \S.{0,2000}|has closed its communicator))"
)
"""In a traceback, in a rank's log (its event "verdict"), or in that of the hub, with or without the logger's name."""
_MARK = re.compile(r"\brank \d{1,9} (?:failed: |has closed its communicator)")
MOST = 16
"""Verdicts of one file that are told: each is a group that has become smaller."""


def looks_like_lost_ranks(text: str) -> bool:
    """Some line says it."""
    return any(_VERDICT.search(line) for line in text.splitlines() if _MARK.search(line))


def read_lost_ranks(text: str, source: str, ports: NicDirections) -> Evidence:
    """A sign for the first verdict in the file: its rank is that of the topology with this number. Those that go on
    after it have other numbers, so that of later ones the server is not known."""
    first: dict[str, tuple[int, int]] = {}  # verdict -> line, rank
    for number, line in enumerate(text.splitlines(), 1):
        if _MARK.search(line) and (found := _VERDICT.search(line)):
            first.setdefault(found["verdict"].rstrip(), (number, int(found["rank"])))
    signs, unknown = list[Sign](), list[str]()
    ranks = ports.cluster.ranks
    for verdict, (at, rank) in list(first.items())[:MOST]:
        where = f"{source}:{at}"
        if signs or unknown:
            unknown.append(f"{where}: {verdict}: of a smaller group, whose numbers are others")
        elif rank >= len(ranks):
            unknown.append(f"{where}: {verdict}: the topology has {len(ranks)} ranks")
        else:
            server = ports.cluster.servers[ranks[rank].server].name
            signs.append(Sign(where, verdict, server, grave="failed: " in verdict, rank=rank))
    read = f"{source}: what optcc's jobs say of ranks, {len(first)} {'verdict' if len(first) == 1 else 'verdicts'}"
    return Evidence((), tuple(signs), (read,), tuple(unknown))
