"""What NCCL's RAS client says (``ncclras``, text or ``-f json``): processes that are dead or do not answer.

It tells of servers and GPUs, never of NICs: clues to hold beside measurements, none by themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from optcc.diagnose.evidence import Evidence, NicDirections, Sign
from optcc.discover.pasted import dicts, parsed

_PROCESS = re.compile(
    r"(?:Process|managed by process) (\d{1,9}) on node (\S{1,255})(?: managing GPUs? ([\d,-]{1,80}))?"
)
_HEADING = re.compile(r"\s*(?:#\d+-\d+ \(\w+\) )?(DEAD|INCOMPLETE|MISMATCH|TIMEOUT|ERROR)\s*$")
_EVENT = re.compile(r"\bPEER_(DEAD|UNRESPONSIVE)\b")
_JSON = re.compile(r'"(?:missing_ranks|communicators)":')
_DIFFERENT = re.compile(r"Communicator ranks have different (?:(\w{1,40}) operation counts|status)")
_STATE = r"(?:(?:has|have) (?:launched up to operation (\d{1,19})|(not launched any operations)|status (\w{1,40})))"
_SOME = re.compile(rf"(\d{{1,9}}) ranks? {_STATE}")
_ONE = re.compile(rf"Rank (\d{{1,9}}) {_STATE}")
_RANK = re.compile(r"Rank (\d{1,9}) -- ")
_FLAGS = {"abort_flag": "ABORT", "destroy_flag": "DESTROY", "finalize_called": "FINALIZE"}
MOST = 64
WORDS = {"DEAD": "a process is dead for RAS", "INCOMPLETE": "a process does not answer RAS",
         "ERROR": "a process reports an error"}  # fmt: skip


@dataclass
class _Different:
    """Ranks of a communicator that differ: in the `operation` that they have launched, empty: in status.

    counts : state -> ranks in it, the state being how many were launched, or a word
    listed : (line, rank, host, state) of those that are named
    """

    operation: str
    counts: Counter[int | str] = field(default_factory=Counter)
    listed: list[tuple[int, int, str, int | str]] = field(default_factory=list)

    def told(self) -> list[tuple[int, str, str, bool]]:
        """(line, host, what, grave) of each that is named."""
        return [(line, host, self._what(rank, state), False) for line, rank, host, state in self.listed]

    def _what(self, rank: int, state: int | str) -> str:
        others = ", ".join(
            f"{count} {'rank' if count == 1 else 'ranks'} at {other}"
            for other, count in self.counts.most_common()
            if other != state
        )
        if isinstance(state, str):
            return f"rank {rank} has status {state}; {others.replace(' at ', ' with ')}"
        launched = [other for other in self.counts if isinstance(other, int)]
        where = f"of {self.operation}" if self.operation else "of collectives"
        if len(launched) < 2:
            return f"rank {rank} has launched {state} {where}, which is not what the others have"
        if state == max(launched):
            return f"rank {rank} is ahead: it has launched {state} {where}, {others}: the others are late"
        return f"rank {rank} is behind: it has launched {state} {where}, {others}"


def looks_like_ras(text: str) -> bool:
    """The heads of its reports."""
    return "Job summary" in text or "PEER_" in text or _JSON.search(text) is not None


def read_ras(text: str, source: str, ports: NicDirections) -> Evidence:
    """A sign for each process that is dead or missing, and for each rank that is ahead or behind. Nodes are often
    addresses, which topologies have not."""
    signs, unknown = list[Sign](), list[str]()
    if _JSON.search(text):
        found = _from_json(text, source)
    else:
        found, unnamed = _from_text(text)
        unknown += [f"{source}:{line}: {what} in RAS, without a process" for line, what in unnamed[:MOST]]
    for line, host, what, grave in found[:MOST]:
        server = ports.server(host)
        where = f"{source}:{line}" if line else source
        if server is None:
            unknown.append(f"{where}: {what}, on {host}, which the topology does not have by this name")
        else:
            signs.append(Sign(where, what, server, None, grave))
    return Evidence((), tuple(signs), (f"{source}: RAS, {len(found)} processes with trouble",), tuple(unknown))


def _from_text(text: str) -> tuple[list[tuple[int, str, str, bool]], list[tuple[int, str]]]:
    """Processes with trouble; and (line, heading) of trouble for which none is named."""
    found, heading = list[tuple[int, str, str, bool]](), ""
    headings, named = list[tuple[int, str]](), set[int]()
    different, state = list[_Different](), None
    for number, line in enumerate(text.splitlines(), 1):
        if head := _HEADING.match(line):
            heading = head[1]
            headings.append((number, heading))
        elif line and not line[0].isspace() and heading and set(line.strip()) <= set("="):
            continue
        if subject := _DIFFERENT.search(line):
            different.append(_Different("" if subject[1] in (None, "collective") else subject[1]))
        event, process, one = _EVENT.search(line), _PROCESS.search(line), _ONE.search(line)
        if headings and (process or one or "missing rank" in line):
            named.add(headings[-1][0])
        what = "DEAD" if event and event[1] == "DEAD" else "INCOMPLETE" if event else heading
        if process and what in WORDS:
            found.append((number, process[2], WORDS[what], True))
        elif different and (some := _SOME.search(line)):
            state = _state(some)
            different[-1].counts[state] += int(some[1])
        elif different and one:
            different[-1].counts[_state(one)] += 1
            if process:
                different[-1].listed.append((number, int(one[1]), process[2], _state(one)))
        elif different and process and state is not None and (rank := _RANK.search(line)):
            different[-1].listed.append((number, int(rank[1]), process[2], state))
    unnamed = [(line, what) for line, what in headings if line not in named]
    return [*found, *(told for each in different for told in each.told())], unnamed


def _state(found: re.Match[str]) -> int | str:
    return int(found[2]) if found[2] else 0 if found[3] else found[4]


def _from_json(text: str, source: str) -> list[tuple[int, str, str, bool]]:
    values = parsed(text, source, "what ncclras -f json prints", "communicators", "missing_ranks")
    found = list[tuple[int, str, str, bool]]()
    for comm in (comm for _, value in values for comm in dicts(value.get("communicators"))):
        for rank in dicts(comm.get("missing_ranks")):
            status = rank.get("status")
            dead = isinstance(status, dict) and status.get("considered_dead") is True
            found.append((0, str(rank.get("host", ""))[:255], WORDS["DEAD" if dead else "INCOMPLETE"], True))
        ranks = dicts(comm.get("ranks"))
        for rank in ranks:
            status = rank.get("status")
            code = status.get("async_error") if isinstance(status, dict) else 0
            if isinstance(code, int) and code not in (0, 7):
                found.append((0, str(rank.get("host", ""))[:255], WORDS["ERROR"], True))
        found += [told for each in (*_counted(ranks), *_in_states(ranks)) for told in each.told()]
    return found


def _counted(ranks: Sequence[dict[str, Any]]) -> list[_Different]:
    """For each collective of which ranks have launched different numbers; the most frequent number is not listed."""
    kinds: dict[str, _Different] = {}
    for rank in ranks:
        counts, number = rank.get("collective_counts"), rank.get("rank")
        if not isinstance(counts, dict) or not isinstance(number, int):
            continue
        for kind, count in counts.items():
            if isinstance(count, int):
                each = kinds.setdefault(str(kind)[:40], _Different(str(kind)[:40]))
                each.counts[count] += 1
                each.listed.append((0, number, str(rank.get("host", ""))[:255], count))
    for each in kinds.values():
        usual = each.counts.most_common(1)[0][0]
        each.listed = [one for one in each.listed if one[3] != usual]
    return list(kinds.values())


def _in_states(ranks: Sequence[dict[str, Any]]) -> list[_Different]:
    """Ranks in another state than most, in the words of the report as text."""
    each = _Different("")
    for rank in ranks:
        status, number = rank.get("status"), rank.get("rank")
        if isinstance(status, dict) and isinstance(number, int):
            state = next((word for flag, word in _FLAGS.items() if status.get(flag) is True), "RUNNING")
            each.counts[state] += 1
            each.listed.append((0, number, str(rank.get("host", ""))[:255], state))
    usual = each.counts.most_common(1)[0][0] if each.counts else ""
    each.listed = [one for one in each.listed if one[3] != usual]
    return [each]
