"""The front door for text, of topologies and of evidence alike: what stands around it is taken away, once.

Files are pasted, logged, or printed by many processes at once: in a Markdown fence, quoted, with colours, after a
banner, or with a prefix on every line. `plain` and `cleaned` take away all that can be told apart from content. For
topologies `unwrapped` refuses what is on some lines only, or names several hosts: which lines belong together would be
a guess, and what is lost makes a bound too high.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from textwrap import dedent
from typing import Any

from optcc.discover.given import expand_hosts
from optcc.errors import InputError

_COLOURS = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07\x1b\n]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9])")
_FENCE = re.compile(r"\s{0,3}(```|~~~)")
_FENCES = re.compile(r"^ {0,3}(?:```|~~~)[`~]{0,8}([^\n]*)$", re.M)
_LANGUAGE = re.compile(r"\s*[\w+.-]{0,20}\s*")
_RULE = re.compile(r"-{8,32}")  # above and below the hosts' names: dshbak, clush -b
_ANSIBLE = re.compile(r"([A-Za-z0-9][\w.-]{0,254}) \| (?:SUCCESS|CHANGED) \| rc=0 >>")
_END = r"(?: |$)"
_FIELDS = (
    r"(?!(?:CA|Switch|Router|State|Rate|LMC|state|port|rate|Speed|Duplex|Width):|"
    r"\d{1,4}: [\w.+-]{1,80}: node_type )"
)
"""What is of ports, and not who speaks."""
_HOST = rf"{_FIELDS}(?: {{0,6}}(?=\d{{1,6}}:))?([A-Za-z0-9][\w.-]{{0,63}}):{_END}"  # pdsh, clush, srun --label
_SYSLOG = (  # RFC 5424
    r"<[0-9]{1,3}>[0-9]{1,2} (?:-|[0-9]{4}-[0-9]{2}-[0-9]{2}T\S{8,32}) ([\w.:-]{1,255}) \S{1,48} \S{1,128} \S{1,32} "
    r"(?:-|(?:\[[^\]\n]{0,1000}\]){1,8})(?: \ufeff?|$)"
)
_DATE = r"[A-Z][a-z]{2} [A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} [0-9]{4}"


@dataclass(frozen=True)
class Prefix:
    """What may stand before each line. sure : nothing else looks so, and it goes wherever it is; else only where half
    of the lines have it. Its group, if any, names who speaks."""

    name: str
    pattern: re.Pattern[str]
    sure: bool = False

    @classmethod
    def of(cls, name: str, pattern: str, sure: bool = False) -> Prefix:
        return cls(name, re.compile(f"^{pattern}", re.M), sure)


_PREFIXES = (
    Prefix.of("a quote's >", r" {0,3}> ?"),
    Prefix.of(
        "mpirun's tag",
        rf"(?:{_DATE} ?)?(?:\[(?:[\w.@-]{{1,80}}[@,])?[0-9]{{1,9}},[0-9]{{1,9}}\](?:\[[\w.:-]{{1,99}}\])?)?"
        rf"<std(?:out|err|diag)>: ?",
        sure=True,
    ),
    Prefix.of("a pod's name", r"\[pod/[\w.-]{1,253}/[\w.-]{1,63}\] ?", sure=True),
    Prefix.of(
        "a time",
        r"\[?[0-9]{4}[-/][0-9]{2}[-/][0-9]{2}[T ][0-9:]{8}(?:[.,][0-9]{1,9})?(?:Z|[+-][0-9:]{4,5})?\]?:?" + _END,
        sure=True,
    ),
    Prefix.of("a time", rf"\[?{_DATE}\]?:?{_END}", sure=True),
    Prefix.of("a container's stream", rf"std(?:out|err) [FP]{_END}", sure=True),
    Prefix.of("a time", r"\[?[0-9]{2}:[0-9]{2}:[0-9]{2}(?:[.,][0-9]{1,9})?\]?:?" + _END),
    Prefix.of("a time", r"\[? {0,8}[0-9]{1,10}\.[0-9]{3,9}\]:?" + _END),
    Prefix.of("syslog's prefix", _SYSLOG, sure=True),
    Prefix.of(
        "syslog's prefix",
        r"(?:<[0-9]{1,3}>)?[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8}(?:\.[0-9]{1,9})? "
        rf"(?:[\w.-]{{1,64}} [\w./@-]{{1,64}}(?:\[[0-9]{{1,9}}\])?:{_END})?",
        sure=True,
    ),
    Prefix.of("syslog's prefix", rf"[\w.-]{{1,64}} [\w./@-]{{1,64}}\[[0-9]{{1,9}}\]:{_END}", sure=True),
    Prefix.of("a worker's name", r"\((?:[\w.-]{1,64} )?pid=[0-9]{1,9}(?:, ip=[0-9a-f.:]{2,45})?\) ?", sure=True),
    Prefix.of("a rank's name", r"\[(?:rank|default|trainer|worker)[0-9]{1,6}\]:? ?", sure=True),
    Prefix.of("a rank's name", r"\[[0-9]{1,6}\] ?"),
    Prefix.of("NCCL's log prefix", r"[\w.-]{1,64}:[0-9]{1,9}(?::[0-9]{1,9})? \[[0-9]{1,4}\] NCCL [A-Z]{4,8}" + _END),
    Prefix.of("a host's name", _HOST),
    Prefix.of("a task's number", rf" {{0,6}}{_FIELDS}[0-9]{{1,6}}:{_END}", sure=True),
    Prefix.of("a container's name", r"([A-Za-z0-9][\w.-]{0,63}) {1,40}\| ?"),
)
_NCCL = "NCCL's log prefix"
_SPEAKERS = (
    ("{}", re.compile(_HOST)),
    ("rank{}", re.compile(r"\[[0-9]{1,9},([0-9]{1,9})\]<std(?:out|err)>: ?")),
    ("{}", re.compile(r"\[pod/([\w.-]{1,240})/[\w.-]{1,63}\] ?")),
    ("{}", re.compile(_SYSLOG)),
    (
        "{}",
        re.compile(
            r"(?:<[0-9]{1,3}>)?[A-Z][a-z]{2} [ 0-9][0-9] [0-9:]{8} ([\w.-]{1,64}) [\w./@-]{1,64}(?:\[[0-9]{1,9}\])?: ?"
        ),
    ),
)
"""What a server is called, and what names it before each of its lines."""
_BOXED = ("log", "MESSAGE", "message")
"""Keys of JSON lines that hold a line of a log: Docker's json-file, journald, shippers of logs."""
_SAMPLE = 2**20
"""Characters of a log that tell whether most of its lines have a prefix."""
_DEEPEST = 4  # such as a quoted log with times and hosts
_BEFORE_CONTENT = re.compile(r"([^{\"\n]{1,120}?)(?:(?<!\w)#(?=[\s#]|$)|(?<=\W)\{)")
_ALONE = re.compile(r"([^{\"\n]{1,120}[]:|)>])[ \t]*$")
"""What is before a table's comment or JSON on its line, or before an empty line."""
_HEADS = re.compile(
    r"<\?xml|<!--|<system\b|\boptcc: ?\d|\bCA '|\bhca_id:|\bInfiniband device '|\blink [\w.+-]{1,80}/\d{1,3} state |"
    r"\b\d{1,4}/\d{1,3}: [\w.+-]{1,80}/|\b\d{1,4}: [\w.+-]{1,80}: node_type |\bSettings for |"
    r"[\w.+-]{1,80} port \d{1,3} ==> |(?:\t|\b)GPU0\s|={8,}|\bOperational Info|\bCA: |0x[0-9a-f]{16} \"|"
    r"\[?\{(?:\"|[ \t]*$)|\[[ \t]*$"
)
"""What a text begins with that a reader knows: what stands before it on its line is a prefix, if all lines have it."""
_FEWEST = 4
"""Lines with the same text before them, from which on it is a prefix."""
_LINES_TRIED = 64
_ONE_HOST = "Give one file for each host, such as: grep '^node1:' all.txt > node1.txt."


_BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"))

_LOOKED_AT = 400
"""Bytes of a text whose every other one is empty where it is UTF-16 of letters and digits."""


def _is_empty(data: bytes) -> bool:
    return len(data) > 1 and not data.strip(b"\0")


def as_utf8(data: bytes) -> bytes:
    """The same text as UTF-8 without a byte order mark; `data` itself where it is that, or not what it seems to be."""
    wide = [mark for mark, place in ((b"\xff\xfe", 1), (b"\xfe\xff", 0)) if _is_empty(data[place:_LOOKED_AT:2])]
    data = wide[0] + data if wide and not data.startswith((b"\xff\xfe", b"\xfe\xff")) else data
    for mark, encoding in _BOMS:
        if data.startswith(mark):
            try:
                return data[len(mark) :].decode(encoding).encode()
            except UnicodeError:
                return data
    return data


def plain(text: str) -> str:
    """Without a byte order mark, a terminal's codes and carriage returns; of lines boxed in JSON, what is in them."""
    text = without_colours(text.removeprefix("\ufeff")).replace("\xa0", " ")
    text = re.sub(r"\r+\n", "\n", text) if "\r\n" in text else text
    return _unboxed(text) if text.lstrip()[:2] == '{"' else text


def cleaned(text: str) -> str:
    """The same lines without fences, and without all prefixes but NCCL's own, which readers of its log want. What is
    on some of the lines only is taken from these: in a log, each line speaks for itself."""
    text = plain(text)
    text = _FENCES.sub(lambda fence: "" if _LANGUAGE.fullmatch(fence[1]) else fence[1], text)
    for _ in range(_DEEPEST):
        before = text
        for prefix in _PREFIXES:
            if prefix.name != _NCCL and _is_on(prefix, text):
                text = prefix.pattern.sub("", text)
        if text == before and (learned := _learned(text)):
            text = learned.sub("", text)
        if text == before and (headed := _before_heads(text.splitlines())):
            text = headed[0].sub("", text)
        if text == before:
            break
    return text


def _is_on(prefix: Prefix, text: str) -> bool:
    if prefix.sure:
        return prefix.pattern.search(text) is not None
    lines = [line for line in text[:_SAMPLE].split("\n") if line.strip()]
    return not _starts(lines) and _mostly(prefix, lines)


def _learned(text: str) -> re.Pattern[str] | None:
    """A prefix of a form that is not listed: most lines have it, but for numbers, and on some of them nothing follows
    but what begins a line: a comment, JSON, or an empty line. What is on half of the lines may be their headings."""
    lines = [line for line in text[:_SAMPLE].split("\n") if line.strip()]
    tried = set[str]()
    if _starts(lines):
        return None
    for line in lines[:_LINES_TRIED]:
        for form in (_BEFORE_CONTENT, _ALONE):
            match = form.match(line)
            if match is None or not match[1].strip() or " NCCL " in match[1]:
                continue
            words = re.split(r"[ \t]*\d+", match[1].rstrip())
            pattern = r"[ \t]*\d+".join(re.escape(word) for word in words) + r"(?!\d)"
            if pattern in tried:
                continue
            tried.add(pattern)
            bare, spaced = (re.compile(f"^{pattern}{end}", re.M) for end in ("", r"(?:[ \t]|$)"))
            found = [line for line in lines if bare.match(line)]
            if len(found) >= _FEWEST and 2 * len(found) > len(lines):
                return spaced if all(map(spaced.match, found)) else bare
    return None


def _before_heads(lines: list[str], path: str = "") -> tuple[re.Pattern[str], int] | None:
    """A prefix of a form that is not listed, and the line from which on all have it, but for numbers: that of the first
    line that begins something which a reader knows. Numbers that belong to a word, as in node1, do not differ. With a
    `path`, InputError where they do: then several hosts speak."""
    written = [i for i, line in enumerate(lines) if line.strip()]
    for n, i in list(enumerate(written))[:_LINES_TRIED]:
        head = _HEADS.search(lines[i])
        before = lines[i][: head.start()] if head else ""
        said = before.rstrip()
        if not re.search(r"\w", said):  # a mark alone is the text's own, as a list's in YAML
            continue
        parts = re.split(r"([A-Za-z_-]\d+|[ \t]*\d+)", said)
        form = "".join(_any_number(part) if odd % 2 else re.escape(part) for odd, part in enumerate(parts))
        end = rf"(?:{re.escape(before[len(said) :])}|$)" if before != said else ""
        pattern = re.compile(rf"^{form}{end}", re.M)
        found = [match for j in written[n:] if (match := pattern.match(lines[j]))]
        if len(found) < len(written) - n:
            continue
        if len({match.groups() for match in found}) == 1:
            while n and pattern.match(lines[written[n - 1]]):  # a command before its output
                n -= 1
            return pattern, written[n]
        if path:
            got = ", ".join(dict.fromkeys(match[0].strip() for match in found))[:120]
            raise InputError("lines of several hosts", where=path, expected="one host", got=got, hint=_ONE_HOST)
    return None


def _any_number(word: str) -> str:
    """Any number in the place of this one; in a group where it belongs to a word, and not to a date as T10 does."""
    letter = word.rstrip("0123456789").strip()
    return rf"{re.escape(letter)}(\d+)" if letter not in ("", "T", "-") else rf"{re.escape(letter)}[ \t]*\d+"


def _mostly(prefix: Prefix, lines: list[str]) -> bool:
    """Whether half of the lines have it. Hosts are before many lines each; names in a legend or in YAML before one."""
    found = [match for line in lines if (match := prefix.pattern.match(line))]
    hosts = {match[1] for match in found} if prefix.pattern.groups else set()
    return len(lines) > 1 and 2 * len(found) >= len(lines) and len(found) >= 2 * len(hosts)


def _unboxed(text: str) -> str:
    """What JSON lines of a log hold; the text itself where some line holds none."""
    lines = []
    for line in filter(str.strip, text.split("\n")):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            return text
        keys = [key for key in _BOXED if isinstance(value, dict) and isinstance(value.get(key), str)]
        if not keys:
            return text
        lines.append(value[keys[0]].rstrip("\r\n"))
    return "\n".join(lines) + "\n"


MOST_TRIES = 1000
"""Lines that may begin a JSON value, but do not, before one that does."""
_JSON_LINE = re.compile(
    r"[ \t]*(?:[]{}[]|\"(?:[^\"\\\n]|\\.)*\"[ \t]*(?::|,?[ \t]*$)|(?:-?\d[\d.eE+-]*|true|false|null)[ \t]*,?[ \t]*$)"
)
"""What begins a line of JSON that is written over several; lines of other processes may stand between them."""


def json_values(text: str) -> list[tuple[int, Any]]:
    """(line, value) of the JSON objects and lists that begin lines of a text, whatever stands around them, and between
    their lines."""
    decoder, found, place, tries = json.JSONDecoder(), list[tuple[int, Any]](), 0, 0
    start = re.compile(r"^[ \t]*(?=[{\[])", re.M)
    while tries < MOST_TRIES and (match := start.search(text, place)):
        try:
            value, place = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            tries += 1
            if (picked := _picked(text, match.end())) is None:
                place = text.find("\n", match.end()) + 1
                if place == 0:
                    break
                continue
            value, place = picked
        found.append((text.count("\n", 0, match.end()) + 1, value))
    return found


def _picked(text: str, start: int) -> tuple[Any, int] | None:
    """The value that begins at `start`, a brace alone on its line, and ends where one does in the same column, of the
    lines between that look like JSON; and where it ends. None where there is none."""
    first = text[start : text.find("\n", start)].rstrip()
    if first not in ("{", "["):
        return None
    indent = text[text.rfind("\n", 0, start) + 1 : start]
    last = re.compile(rf"^{indent}{']' if first == '[' else '}'}", re.M).search(text, start)
    if last is None:
        return None
    lines = [line for line in text[start : last.end()].split("\n") if _JSON_LINE.match(line)]
    try:
        return json.loads("\n".join(lines)), last.end()
    except (ValueError, RecursionError):
        return None


def begins_as_xml(text: str) -> bool:
    """Whether it is XML, or a page of the web, as it is."""
    return re.match(r"\s*<(?:\?xml|!--|!DOCTYPE|system\b|graphs\b|html\b)", text) is not None


def unwrapped(text: str, path: str) -> tuple[str, list[str]]:
    """The text inside, and what was taken away. Raises InputError where that is not the same on all lines."""
    taken: list[str] = []
    text = plain(text)
    lines = text.splitlines()
    for _ in range(_DEEPEST):
        lines = _unfenced(lines, path, taken)
        if not any(line.strip() for line in lines) or _starts(lines):
            break
        for prefix in _PREFIXES:
            shorter = _without(lines, prefix, path, taken)
            if shorter is not None:
                lines = shorter
                taken.append(prefix.name)
                break
        else:
            if (headed := _before_heads(lines, path)) is None:
                break
            pattern, start = headed
            if any(line.strip() for line in lines[:start]):
                taken.append("a banner")
            lines = [pattern.sub("", line, count=1) for line in lines[start:]]
            taken.append("what is before each line")
    if any(lines) and all(line[:1].isspace() for line in lines if line.strip()):
        lines = dedent("\n".join(lines)).split("\n")
        taken.append("an indent")
    lines = _from_content(lines, taken)
    return ("\n".join(lines) + "\n" if taken else text), taken


_BEGINS = re.compile(r"<(?:\?xml|!--|!DOCTYPE|system|graphs|html)\b|<!--|optcc:")
_CONTENT = re.compile(r"\s|-|%|[\w-]{1,40}:(?:\s|$)|.*[<{]")
"""What may be a part of XML or YAML: it is no banner."""


def _from_content(lines: list[str], taken: list[str]) -> list[str]:
    """With empty lines in place of a banner before XML or YAML, and of a prompt after XML."""
    start = next((i for i, line in enumerate(lines) if _BEGINS.match(line.lstrip())), 0)
    before = [line for line in lines[:start] if line.strip() and not line.startswith("#")]
    if before and not any(_CONTENT.match(line) for line in before):
        taken.append("a banner")
        lines = ["" if line in before else line for line in lines[:start]] + lines[start:]
    if lines[start : start + 1] and lines[start].lstrip().startswith("<"):
        end = next((i for i in range(len(lines) - 1, start, -1) if ">" in lines[i]), start)
        if any(line.strip() and "<" not in line for line in lines[end + 1 :]) and lines[end].rstrip().endswith(">"):
            taken.append("what follows")
            lines = lines[: end + 1]
    return lines


def by_host(text: str) -> dict[str, str] | None:
    """Host -> its lines, of a text in which several hosts speak; None where that is not so.

    As pdsh, clush and srun --label print it, each line begins with its host; dshbak and ``clush -b`` put hosts with the
    same output above it, and Ansible each host. Of one host's lines `unwrapped` takes the name away. Raises InputError
    for a list of hosts that cannot be read.
    """
    lines = plain(text).splitlines()
    hosts = _by_heading(lines) or _by_prefix([line for line in lines if line.strip()])
    return None if hosts is None else {host: "\n".join(own) + "\n" for host, own in hosts.items()}


def _by_prefix(lines: list[str]) -> dict[str, list[str]] | None:
    for called, speaker in _SPEAKERS:
        if len(lines) < 2 or _starts(lines) or not all(speaker.match(line) for line in lines):
            continue
        hosts: dict[str, list[str]] = {}
        for line in lines:
            if match := speaker.match(line):
                hosts.setdefault(called.format(match[1]), []).append(line[match.end() :])
        if len(hosts) > 1 and 2 * len(hosts) <= len(lines):
            return hosts
    return None


def _by_heading(lines: list[str]) -> dict[str, list[str]] | None:
    """The first line that is not empty is a heading, or the text has none."""
    hosts: dict[str, list[str]] = {}
    current: list[str] = []
    i = next((i for i, line in enumerate(lines) if line.strip()), len(lines))
    while i < len(lines):
        ansible = _ANSIBLE.fullmatch(lines[i])
        ruled = i + 2 < len(lines) and _RULE.fullmatch(lines[i]) and _RULE.fullmatch(lines[i + 2])
        if ansible or ruled:
            current = []
            for host in [ansible[1]] if ansible else expand_hosts(lines[i + 1].strip()):
                hosts.setdefault(host, current)
            i += 1 if ansible else 3
            continue
        if not hosts:
            return None
        current.append(lines[i])
        i += 1
    return hosts or None


def without_colours(text: str) -> str:
    """Without a terminal's codes: nvidia-smi underlines the header of its matrix."""
    return _COLOURS.sub("", text) if "\x1b" in text else text


def _starts(lines: list[str]) -> bool:
    """Whether it is XML or YAML as it is."""
    first = next((line.strip() for line in lines if line.strip()), "")
    return first.startswith(("<", "optcc:", "{", "#", "---", "%")) and not re.match(
        r"<\d{1,3}>|\{[\w./-]{1,80}:\d{1,6}\} ", first
    )


def _unfenced(lines: list[str], path: str, taken: list[str]) -> list[str]:
    fences = [i for i, line in enumerate(lines) if _FENCE.match(line)]
    if not fences:
        return lines
    if len(fences) != 2:
        raise InputError(
            "Markdown fences around more or less than one text",
            where=f"{path}:{fences[0] + 1}",
            expected="one text between two lines of ```",
            got=f"{len(fences)} such lines",
            hint="Save the one block that is the topology.",
        )
    taken.append("a Markdown fence")
    first = _FENCES.sub(lambda fence: "" if _LANGUAGE.fullmatch(fence[1]) else fence[1], lines[fences[0]])
    return [first, *lines[fences[0] + 1 : fences[1]]]


def _without(lines: list[str], prefix: Prefix, path: str, taken: list[str]) -> list[str] | None:
    """The lines without the prefix, and without those of a banner before it; None where they have none."""
    written = [i for i, line in enumerate(lines) if line.strip()]
    if not _mostly(prefix, [lines[i] for i in written]):
        return None
    found = [(i, match) for i in written if (match := prefix.pattern.match(lines[i]))]
    if bare := [i for i in written if i > found[0][0] and not prefix.pattern.match(lines[i])]:
        raise InputError(
            f"{prefix.name} before some lines, but not all",
            where=f"{path}:{bare[0] + 1}",
            expected="all lines alike",
            got=lines[bare[0]].strip()[:60],
            hint="Take the prefixes away, or what is not part of the topology.",
        )
    hosts = sorted({match[1] for _, match in found}) if prefix.pattern.groups else []
    if len(hosts) > 1:
        got = ", ".join(hosts[:8])
        raise InputError("lines of several hosts", where=path, expected="one host", got=got, hint=_ONE_HOST)
    if written[0] < found[0][0]:
        taken.append("a banner")
    return [prefix.pattern.sub("", line, count=1) for line in lines[found[0][0] :]]


def parsed(text: str, source: str, expected: str, *keys: str) -> list[tuple[int, dict[str, Any]]]:
    """(line, object) of the JSON objects that begin lines of a text and have one of `keys`, whatever stands around
    them. Raises InputError, which says what was `expected`, where there is none."""
    found = [
        (line, value)
        for line, value in json_values(text)
        if isinstance(value, dict) and not value.keys().isdisjoint(keys)
    ]
    if not found:
        raise InputError("not JSON", where=source, expected=expected, got="no whole object of it")
    return found


def from_json(text: str) -> str:
    """The text with empty lines in place of those before its first JSON object: a banner, a prompt."""
    start = re.search(r"^[ \t]*[{\[]", text, re.M)
    return text if start is None else "\n" * text.count("\n", 0, start.start()) + text[start.start() :]


def dicts(value: Any) -> list[dict[str, Any]]:
    """The objects of a list; none where `value` is no list."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


_SYSFS = "Give a copy of the server's sysfs, or what ibstat prints."
_SYSFS_EVIDENCE = "Give SERVER=DIR with a copy of the server's sysfs, or what ibstat or perfquery prints."
_PAIRS = "Give what sendrecv_perf of nccl-tests prints, or run optcc calibrate."


@dataclass(frozen=True)
class KnownTool:
    """How a tool's output is told, and what to give instead of it: as a topology, as evidence."""

    name: str
    looks: re.Pattern[str]
    topology: str = _SYSFS
    evidence: str = _SYSFS_EVIDENCE

    @classmethod
    def of(cls, name: str, looks: str, topology: str = _SYSFS, evidence: str = _SYSFS_EVIDENCE) -> KnownTool:
        return cls(name, re.compile(looks, re.M), topology, evidence)


_TOOLS = (
    KnownTool.of("perfquery's counters", r"[Pp]ort (?:extended )?counters: Lid|^PortSelect:\.{3}"),
    KnownTool.of("ethtool -S's counters", r"^NIC statistics:"),
    KnownTool.of("mlxlink's output", r"^Operational Info"),
    KnownTool.of("ibqueryerrors' output", r"^Errors for |GUID 0x[0-9a-f]+ port (?:ALL|\d+):"),
    KnownTool.of("ibdiagnet's output", r"ibdiagnet|^-[IWE]- "),
    KnownTool.of("ibnetdiscover's output", r"^(?:Ca|Switch)\s+\d+ \"[HS]-[0-9a-f]+\""),
    KnownTool.of("ibportstate's output", r"^LinkWidthActive:\.{3}"),
    KnownTool.of("ibv_devices' list", r"^\s+device\s+node GUID\s*$"),
    KnownTool.of("show_gids' table", r"^DEV\s+PORT\s+INDEX\s+GID"),
    KnownTool.of("ip link's output", r"^(?:\d{1,4}: )?[\w.@-]{1,32}: <[A-Z_,-]+> mtu "),
    KnownTool.of("lspci's list", r"^(?:[0-9a-f]{4}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] [A-Z]\w+.*: "),
    KnownTool.of("lstopo's picture", r"^Machine \(\d+\w+ total"),
    KnownTool.of("perftest's output", r"RDMA_\w+ BW Test|Send BW Test|#bytes\s+#iterations", evidence=_PAIRS),
    KnownTool.of(
        "NVIDIA's list of GPUs", r"^\|\s*NVIDIA-SMI|^GPU \d{1,2}: ", "Give what nvidia-smi topo -m prints, with NICs."
    ),
    KnownTool.of(
        "nvidia-smi's matrix", r"^\s*\S{0,8}GPU0\s", evidence="It is a topology: give it before the evidence."
    ),
    KnownTool.of(
        "nccl-tests' output",
        r"^#\s+Rank\s+\d+ |\"out_of_place\"",
        "It is evidence for optcc diagnose. As a topology give NCCL's log (NCCL_DEBUG=INFO), or NCCL_TOPO_DUMP_FILE.",
    ),
    KnownTool.of(
        "NCCL Inspector's output",
        r"\"coll_perf\"|^nccl_(?:bus_bandwidth_gbs|collective_exec_time_microseconds)\{",
        "It is evidence for optcc diagnose. As a topology give NCCL's log (NCCL_DEBUG=INFO), or NCCL_TOPO_DUMP_FILE.",
    ),
    KnownTool.of("RAS's report", r"^Job summary|\"missing_ranks\"", "It is evidence for optcc diagnose."),
    KnownTool.of(
        "NCCL's log without its NICs",
        r" NCCL (?:INFO|WARN) |NET/IB",
        "Log with NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,NET from the start of the job.",
    ),
    KnownTool.of(
        "NCCL's XML", r"^\s*<(?:system|graphs|algo)\b", evidence="It is a topology: give it before the evidence."
    ),
    KnownTool.of("the kernel's log", r"\b(?:mlx[45]_core|mlx5_ib|bnxt_en|irdma) [0-9a-f]{4}:[0-9a-f]{2}:"),
)


def tool_of(text: str) -> KnownTool | None:
    """The tool that printed a text; None for one that is not known."""
    return next((tool for tool in _TOOLS if tool.looks.search(text)), None)
