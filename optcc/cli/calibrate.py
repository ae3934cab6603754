"""`optcc calibrate`: measures NICs and latency by real transfers, and writes them beside the nameplates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import click

from optcc.cli.options import (
    OUTPUT,
    check_output,
    emit,
    json_option,
    load_source,
    local_rate_option,
    membership_of,
    membership_options,
    option_terms,
    say_written,
    source_options,
    source_term,
    transport_option,
)
from optcc.errors import InputError, some
from optcc.files.writing import written

if TYPE_CHECKING:
    from optcc.discover.calibration import MeasuredPair, NicRate
    from optcc.values.cluster import Cluster


@dataclass(frozen=True)
class _Outcome:
    """`before` and `after`: the cluster as the file has it, and as measured; times in seconds of the cluster."""

    before: Cluster
    after: Cluster
    pairs: list[MeasuredPair]
    nics: list[NicRate]
    tolerance: float
    alpha_s: float
    alphas_s: list[float]
    chunk_s: float
    slowdown: float


@click.command()
@click.argument("topology")
@click.option("--servers", type=int, metavar="N", help="Replicate a one-server topology N times.")
@click.option("--nic-rate", metavar="RATE", help="For NICs without one; NAME=RATE for NICs of that name.")
@source_options
@click.option("-o", "--output", type=OUTPUT, help="Where to write the topology; - is standard output.")
@transport_option
@click.option("--repeat", type=click.IntRange(1, 100), default=5, show_default=True, help="Measurements of each NIC.")
@click.option("--probe", default="100ms", show_default=True, metavar="TIME", help="What one takes at the file's rate.")
@local_rate_option
@click.option(
    "--slow", multiple=True, metavar="SERVER/NIC=LEFT",
    help="Local transport: this NIC really runs at that part of its rate. To see it found. Repeatable.",
)  # fmt: skip
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False),
    help="Draw nameplate and rates: FILE.svg, .png or .pdf.",
)  # fmt: skip
@membership_options
@json_option
def calibrate(
    topology: str,
    servers: int | None,
    nic_rate: str | None,
    output: Path | None,
    transport: str,
    repeat: int,
    probe: str,
    local_rate: str,
    slow: tuple[str, ...],
    picture: Path | None,
    rendezvous: str | None,
    rank: int | None,
    world: int | None,
    interface: str | None,
    as_json: bool,
) -> None:
    """Measure every NIC both ways, with all NICs busy and alone, and the latency between ranks.

    The file that -o names has the measured rates, with the nameplates beside them; every command that reads it goes by
    what was measured. Rates within 2 % of each other, or within 3 times the spread of repeated measurements, count as
    one. Ranks are started as by `optcc run`: here, or by torchrun, mpirun, srun or --rendezvous.
    """
    from optcc.discover.calibration import measured_as
    from optcc.discover.topology import ENGINE
    from optcc.discover.yaml_file import save_yaml, write_yaml
    from optcc.values.units import parse_seconds

    given = option_terms(
        servers=servers, nic_rate=nic_rate, transport=transport, repeat=repeat, probe=probe, local_rate=local_rate,
        slow=slow,
    )  # fmt: skip
    membership = membership_of(rendezvous, rank, world, interface, lambda: source_term(topology) | given)
    seconds = float(parse_seconds(probe, where="--probe"))
    if not 0.001 <= seconds <= 10:
        raise InputError("out of range", where="--probe", expected="1ms to 10s", got=probe)
    if slow and transport != "local":
        raise InputError("for emulated NICs only", where="--slow", expected="--transport local", got=transport)
    _check_picture(picture)
    check_output(output, as_json)
    check_output(picture, as_json, "--picture")
    found = load_source(topology, servers, nic_rate)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    place = {"transport": transport, "membership": membership, "interface": interface}
    outcome = _measure(found.cluster, repeat, seconds, local_rate, slow, place)
    measured = measured_as(
        outcome.nics,
        date=datetime.now(UTC).date().isoformat(),
        transport=transport,
        path=ENGINE,
        alpha_s=outcome.alpha_s,
        per_chunk_s=outcome.chunk_s,
        before=found.measured.nameplate if found.measured else {},
    )
    if output is not None:
        comments = [f"Written by optcc calibrate {topology}, {repeat} measurements of each NIC."]
        comments += [f"Rates within {outcome.tolerance:.1%} of each other count as one, at their median."]
        if transport == "local":
            comments.append("The NICs were emulated: these are no rates of hardware.")
        spreads = {nic.name: nic.spread for nic in outcome.nics}
        save_yaml(write_yaml(outcome.after, comments=comments, measured=measured, spreads=spreads), output)
        say_written(output)
    if picture is not None:
        draw(outcome.nics, picture, "emulated NICs" if transport == "local" else f"NICs over {transport}")
        click.echo(f"wrote {picture}", err=True)
    emit(as_json, _as_json(outcome, transport), lambda: _print(outcome, transport), beside=output)


def _measure(
    cluster: Cluster, repeat: int, probe_s: float, local_rate: str, slow: tuple[str, ...], place: dict[str, Any]
) -> _Outcome:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from optcc.discover.calibration import MeasuredPair, calibrated, nic_rates, tolerance_of
    from optcc.discover.given import parse_fail
    from optcc.runtime.measuring.calibrate import measure
    from optcc.schedule.routes import ports_of
    from optcc.values.units import parse_rate

    factor = Fraction(1)
    if place["transport"] == "local":
        wanted = parse_rate(local_rate, where="--local-rate")
        if wanted <= 0:
            raise InputError("a rate of nothing", where="--local-rate", expected="more than 0", got=local_rate)
        factor = wanted / max(max(rank.out_rate, rank.in_rate) for rank in cluster.ranks)
    left = dict(parse_fail(text, "--slow") for text in slow)
    for name, part in left.items():
        cluster.degrade(name, part)  # refuses a name that is none
        if not part:
            raise InputError("a dead NIC is not slow", where="--slow", expected="LEFT above 0", got=name)
    ports = ports_of(cluster.scaled(factor))
    console = Console(stderr=True)
    columns = (TextColumn("measuring"), BarColumn(), TextColumn("{task.completed}/{task.total}"), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, of: int) -> None:
            bar.update(task, completed=done, total=of)

        seen = measure(ports, repeat=repeat, probe_s=probe_s, left=left, progress=progress, **place)
    scale = float(factor)
    pairs = [MeasuredPair(p.out, p.into, p.together, tuple(r and r / scale for r in p.rates)) for p in seen.pairs]
    nics = nic_rates(cluster, pairs)
    tolerance = tolerance_of(nics)
    alphas = [float(median(times)) * scale for times in seen.hop_s.values()]
    chunk = float(median(seen.chunk_s)) * scale
    after = calibrated(cluster, nics, tolerance)
    return _Outcome(cluster, after, pairs, nics, tolerance, float(median(alphas)), alphas, chunk, 1 / scale)


def _check_picture(path: Path | None) -> None:
    if path is not None and path.suffix not in (".svg", ".png", ".pdf"):
        raise InputError("not a picture", where="--picture", expected="FILE.svg, .png or .pdf", got=str(path))


def _shared(outcome: _Outcome) -> list[NicRate]:
    """NICs that are faster alone: something is shared that the topology does not show."""
    return [nic for nic in outcome.nics if nic.gain and nic.gain * (1 - outcome.tolerance) > 1]


def _as_json(outcome: _Outcome, transport: str) -> dict[str, Any]:
    kept = {f"{s.name}/{n.name}": n for s in outcome.after.servers for n in s.nics}
    return {
        "transport": transport,
        "emulated": transport == "local",
        "tolerance": outcome.tolerance,
        "alpha_s": outcome.alpha_s,
        "alpha_s_by_pair": outcome.alphas_s,
        "per_chunk_s": outcome.chunk_s,
        "pairs": [
            {"out": pair.out, "in": pair.into, "all_busy": pair.together, "bytes_per_s": list(pair.rates)}
            for pair in outcome.pairs
        ],
        "nics": [
            {
                "nic": nic.name,
                "nameplate_bytes_per_s": nic.nameplate,
                "out_bytes_per_s": nic.out,
                "in_bytes_per_s": nic.into,
                "alone_over_together": nic.gain,
                "spread": nic.spread,
                "held_back": list(nic.held_back),
                "kept_out_bytes_per_s": float(kept[nic.name].out_rate),
                "kept_in_bytes_per_s": float(kept[nic.name].in_rate),
            }
            for nic in outcome.nics
        ],
    }


def _print(outcome: _Outcome, transport: str) -> None:
    from rich.table import Table

    from optcc.reports.console import show
    from optcc.values.units import format_rate, format_seconds

    kept = {f"{s.name}/{n.name}": n for s in outcome.after.servers for n in s.nics}
    table = Table(box=None, pad_edge=False)
    for column in ("NIC", "nameplate", "out", "in", "alone", "spread", "kept"):
        table.add_column(column, justify="left" if column == "NIC" else "right")
    for nic in outcome.nics:
        rates = [format_rate(r, 4) for r in (nic.nameplate, nic.out, nic.into)]
        alone = "-" if nic.gain is None else f"x {nic.gain:.2f}"
        ways = {format_rate(r) for r in (kept[nic.name].out_rate, kept[nic.name].in_rate)}
        table.add_row(nic.name, *rates, alone, f"{nic.spread:.1%}", " / ".join(sorted(ways)))
    show(table)
    if transport == "local":
        show(f"Emulated NICs, {outcome.slowdown:.4g} times slower than this; times below are scaled likewise.")
    low, high = format_seconds(min(outcome.alphas_s)), format_seconds(max(outcome.alphas_s))
    show(
        f"alpha {format_seconds(outcome.alpha_s)} from NIC to NIC ({low} to {high} over {len(outcome.alphas_s)} pairs)"
    )
    show(f"per chunk {format_seconds(outcome.chunk_s)} at a port beside its bytes")
    show(f"Rates within {outcome.tolerance:.1%} of each other count as one, at their median.")
    if missing := sorted(kept.keys() - {nic.name for nic in outcome.nics}):
        show(f"Not measured, as they reach nothing: {', '.join(missing[:8])}. They keep the rates of the file.")
    for nic in outcome.nics:
        for way in nic.held_back:
            show(f"{nic.name}: slow {way}, but so is every NIC that it was measured with; it may be faster.")
    if shared := _shared(outcome):
        names = some([nic.name for nic in shared])
        show(f"Faster alone than together: {names}. Something is shared, such as a PCI slot; kept: the rates together.")


# Nameplate and measured rates of every NIC, as a picture.

MOST = 128
"""NICs that are shown; of more, the slowest against their nameplate."""


def draw(nics: Sequence[NicRate], path: Path, kind: str) -> None:
    """Write a bar chart, a row per NIC. Raises InputError where it cannot be written. `kind` : what was measured."""
    from matplotlib.figure import Figure

    chosen = sorted(nics, key=lambda n: min(n.out, n.into) / n.nameplate if n.nameplate else 0.0)[:MOST]
    chosen = [nic for nic in nics if nic in chosen][::-1]
    figure = Figure(figsize=(7, 1.2 + 0.28 * len(chosen)), layout="constrained")
    axes = figure.subplots()
    places = range(len(chosen))
    gbps = 8e-9
    axes.barh([p + 0.2 for p in places], [n.out * gbps for n in chosen], 0.35, label="out", color="#4477aa")
    axes.barh([p - 0.2 for p in places], [n.into * gbps for n in chosen], 0.35, label="in", color="#88ccee")
    plates = [n.nameplate * gbps for n in chosen]
    axes.plot(plates, places, "|", color="black", markersize=14, label="nameplate", linestyle="none")
    axes.set_yticks(list(places), [n.name for n in chosen], fontsize=8)
    axes.set_xlabel(f"Gb/s, measured, {kind}")
    axes.set_xlim(left=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.08 + 0.5 / len(chosen)), ncols=3, frameon=False)
    with written(path) as file:
        figure.savefig(file, format=path.suffix[1:])
