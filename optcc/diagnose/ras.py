"""What NCCL's RAS client says (``ncclras``, text or ``-f json``): processes that are dead or do not answer.

It tells of servers and GPUs, never of NICs: clues to hold beside measurements, none by themselves.
"""

from __future__ import annotations

import re

from optcc.diagnose.evidence import Evidence, Sign
from optcc.diagnose.json_text import dicts, parsed
from optcc.diagnose.ports import NicDirections

_PROCESS = re.compile(
    r"(?:Process|managed by process) (\d{1,9}) on node (\S{1,255})(?: managing GPUs? ([\d,-]{1,80}))?"
)
_HEADING = re.compile(r"\s*(?:#\d+-\d+ \(\w+\) )?(DEAD|INCOMPLETE|MISMATCH|TIMEOUT|ERROR)\s*$")
_EVENT = re.compile(r"\bPEER_(DEAD|UNRESPONSIVE)\b")
_JSON = re.compile(r'"(?:missing_ranks|communicators)":')
MOST = 64
WORDS = {"DEAD": "a process is dead for RAS", "INCOMPLETE": "a process does not answer RAS",
         "MISMATCH": "a rank is behind the others in collectives", "ERROR": "a process reports an error"}  # fmt: skip


def looks_like_ras(text: str) -> bool:
    """The heads of its reports."""
    return "Job summary" in text or "PEER_" in text or _JSON.search(text) is not None


def read_ras(text: str, source: str, ports: NicDirections) -> Evidence:
    """A sign for each process that is dead, missing or behind. Nodes are often addresses, which topologies have not."""
    found = list(_from_json(text, source)) if _JSON.search(text) else list(_from_text(text))
    signs, unknown = list[Sign](), list[str]()
    for line, host, what in found[:MOST]:
        server = ports.server(host)
        where = f"{source}:{line}" if line else source
        if server is None:
            unknown.append(f"{where}: {what} on {host}, which the topology does not have by this name")
        else:
            signs.append(Sign(where, what, server, None, "behind" not in what))
    return Evidence((), tuple(signs), (f"{source}: RAS, {len(found)} processes with trouble",), tuple(unknown[:8]))


def _from_text(text: str) -> list[tuple[int, str, str]]:
    found, heading = [], ""
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEADING.match(line):
            heading = head[1]
        elif line and not line[0].isspace() and heading and set(line.strip()) <= set("="):
            continue
        event = _EVENT.search(line)
        process = _PROCESS.search(line)
        what = "DEAD" if event and event[1] == "DEAD" else "INCOMPLETE" if event else heading
        if process and what in WORDS:
            found.append((number, process[2], WORDS[what]))
    return found


def _from_json(text: str, source: str) -> list[tuple[int, str, str]]:
    values = parsed(text, source, "what ncclras -f json prints", "communicators", "missing_ranks")
    found = []
    for comm in (comm for _, value in values for comm in dicts(value.get("communicators"))):
        for rank in dicts(comm.get("missing_ranks")):
            status = rank.get("status")
            dead = isinstance(status, dict) and status.get("considered_dead") is True
            found.append((0, str(rank.get("host", ""))[:255], WORDS["DEAD" if dead else "INCOMPLETE"]))
        for rank in dicts(comm.get("ranks")):
            status = rank.get("status")
            code = status.get("async_error") if isinstance(status, dict) else 0
            if isinstance(code, int) and code not in (0, 7):
                found.append((0, str(rank.get("host", ""))[:255], WORDS["ERROR"]))
    return found
