"""A topology as the project's YAML, which `yaml_file` reads back exactly: to be corrected by hand, or calibrated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from optcc.discover.topology import Measured
from optcc.files.writing import write_file
from optcc.values.cluster import Cluster, Nic, Server

_UNITS = ((10**9, "Gb/s"), (10**6, "Mb/s"), (10**3, "kb/s"), (1, "b/s"))


def write_yaml(
    cluster: Cluster,
    *,
    comments: Sequence[str] = (),
    measured: Measured | None = None,
    spreads: Mapping[str, float] | None = None,
) -> str:
    """The file's text.

    comments : lines for its head; measured : how the rates came about, with the nameplates that are kept beside them
    spreads : by SERVER/NIC, between repeated measurements, as a fraction of the rate
    """
    lines = [f"# {_plain(comment)}".rstrip() for comment in comments]
    lines += ["optcc: 1"]
    if measured is not None:
        lines += ["measured:", f"  date: {measured.date}", f"  transport: {measured.transport}"]
        lines += [f"  path: {measured.path}"] if measured.path else []
        times = (("alpha", measured.alpha_s), ("per_chunk", measured.per_chunk_s))
        lines += [f"  {key}: {_time(seconds)}" for key, seconds in times if seconds is not None]
        lines += [f"  spread: {_percent(float(measured.spread))}"]
    lines += _fabric(cluster)
    lines.append("servers:")
    plates = measured.nameplate if measured else {}
    for server in cluster.servers:
        lines += _server(server, _nics(server, plates, spreads))
    return "\n".join(lines) + "\n"


def save_yaml(text: str, path: Path) -> None:
    """Write the whole file or none of it. Raises InputError where it cannot be written."""
    write_file(path, text.encode())


def _fabric(cluster: Cluster) -> list[str]:
    fabric = cluster.fabric
    fields = ["  rails: true"] if fabric.rails else []
    factors = (("spine", fabric.spine), ("pod_oversubscription", fabric.pod_oversubscription))
    fields += [f"  {key}: {factor}" for key, factor in factors if factor is not None]
    return ["fabric:", *fields] if fields else []


def _server(server: Server, nics: list[str]) -> list[str]:
    lines = [f"  - name: {_text(server.name)}", f"    gpus: {server.gpus}"]
    if server.pod is not None:
        lines.append(f"    pod: {_text(server.pod)}")
    if server.nvlink_rate:
        lines.append(f"    nvlink: {_rate(server.nvlink_rate)}")
    return [*lines, "    nics:", *nics]


def _nics(server: Server, plates: Mapping[str, Fraction], spreads: Mapping[str, float] | None) -> list[str]:
    return [_nic(nic, f"{server.name}/{nic.name}", plates, spreads or {}) for nic in server.nics]


def _nic(nic: Nic, name: str, plates: Mapping[str, Fraction], spreads: Mapping[str, float]) -> str:
    fields = [f"name: {_text(nic.name)}"]
    if nic.out_rate == nic.in_rate:
        fields.append(f"rate: {_rate(nic.out_rate)}")
    else:
        fields += [f"out: {_rate(nic.out_rate)}", f"in: {_rate(nic.in_rate)}"]
    fields += [f"{key}: {value}" for key, value in (("rail", nic.rail), ("gpu", nic.gpu)) if value is not None]
    if name in plates:
        fields.append(f"nameplate: {_rate(plates[name])}")
    if name in spreads:
        fields.append(f"spread: {_percent(spreads[name])}")
    return f"      - {{{', '.join(fields)}}}"


def _rate(rate: Fraction) -> str:
    """Exactly, in the largest unit that takes at most three decimals; below 0.001 b/s it is rounded."""
    bits = Fraction(rate) * 8
    for factor, unit in _UNITS:
        scaled = bits / factor * 1000
        if scaled.denominator == 1:
            return f"{_decimal(int(scaled), 3)}{unit}"
    return f"{_decimal(round(bits * 1000), 3)}b/s"


def _time(seconds: Fraction) -> str:
    return f"{_decimal(round(seconds * 10**9), 3)}us"


def _percent(part: float) -> str:
    return f"{_decimal(min(round(part * 10_000), 99_999), 2)}%"


def _decimal(number: int, places: int) -> str:
    whole, rest = divmod(number, 10**places)
    return f"{whole}.{rest:0{places}d}".rstrip("0").rstrip(".")


def _text(name: str) -> str:
    """A name as YAML's quoted text: they hold no control characters, but may hold what YAML gives a meaning."""
    return "'" + name.replace("'", "''") + "'"


def _plain(text: str) -> str:
    return "".join(c if c.isprintable() else " " for c in text)[:500]
