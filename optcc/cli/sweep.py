"""`optcc sweep`: the command, its options as a grid, and what it prints."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optcc.cli.options import emit
from optcc.errors import InputError

if TYPE_CHECKING:
    from optcc.study.cells import SweepCell, SweepResult
    from optcc.study.grid import SweepGrid
    from optcc.study.monte_carlo import Distribution
    from optcc.study.runner import Progress

# Options that stand for fields of a grid file, and those fields; the rest go by the option's own name.
_FIELDS = {"size": "sizes", "algorithm": "algorithms", "fail": "nics", "fail_count": "count"}
_ENTRIES = (
    ("nics",),
    ("count", "left", "place", "draws"),
    ("monte_carlo", "mttf", "repair_time", "nic_share", "mttf_nics"),
)
_LISTS = ("servers", "size", "fail_count", "left", "algorithm", "alpha", "per_chunk", "jitter", "segments")
_SHOWN_ERRORS = 5


@click.command()
@click.argument("source", metavar="GRID|TOPOLOGY")
@click.option(
    "-o", "--output", required=True, type=click.Path(path_type=Path), help="The table: FILE.csv or FILE.parquet."
)
@click.option("--force", is_flag=True, help="Replace an output that exists.")
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes on this machine (default: its cores).")
@click.option(
    "--limit", metavar="TIME", help="For a plan and the rows that share it; they then have an error (default: none)."
)
@click.option("--dask", metavar="ADDRESS", help="Compute on the Dask cluster of this scheduler, as tcp://host:8786.")
@click.option(
    "--histogram", type=click.Path(path_type=Path, dir_okay=False), help="Draw Monte Carlo overheads: FILE.svg."
)
@click.option("--servers", metavar="N,...", help="Replicate a one-server topology N times.")
@click.option("--nic-rate", metavar="RATE", help="The rate of NICs whose speed the file does not give.")
@click.option("--ranks", type=click.Choice(["server", "gpu"]), help="What a rank is (default server).")
@click.option("--size", metavar="SIZE,...", help="Bytes per rank (default 1GiB).")
@click.option(
    "--fail",
    multiple=True,
    metavar="SERVER/NIC[=LEFT]",
    help="One set of failed NICs, named as for `optcc plan`. Repeatable.",
)
@click.option("--fail-count", metavar="N,A..B,...", help="Sets of so many failed NICs.")
@click.option("--left", metavar="LEFT,...", help="What each of them has left of its rate (default 0).")
@click.option(
    "--place", type=click.Choice(["one-server", "spread", "random"]), help="Where they are (default one-server)."
)
@click.option("--draws", metavar="N", help="How many random sets of each count.")
@click.option("--monte-carlo", metavar="N", help="N random moments of a cluster whose NICs fail and are repaired.")
@click.option("--mttf", metavar="TIME", help="Mean time between failures in the cluster, or among --mttf-nics NICs.")
@click.option("--repair-time", metavar="TIME", help="Mean time from a NIC's failure to its return.")
@click.option("--nic-share", metavar="SHARE", help="The share of those failures that are of NICs (default 1).")
@click.option("--mttf-nics", metavar="N", help="How many NICs --mttf is about (default: the cluster's).")
@click.option("--algorithm", metavar="NAME,...", help="optcc, ring, ... (default optcc,ring).")
@click.option("--alpha", metavar="TIME,...", help="Latency from NIC to NIC (default: as measured, or 0us).")
@click.option("--per-chunk", metavar="TIME,...", help="What a port spends on each chunk (default likewise).")
@click.option("--jitter", metavar="PART,...", help="Of every stripe's time by chance (default 0; mean of 3 draws).")
@click.option("--segments", metavar="K,...", help="Pipeline depth (default: the planner's choice).")
@click.option(
    "--receivers", type=click.Choice(["stripes", "packets"]),
    help="What links and receiving ports serve in order: whole stripes, or packets (default with pods or a spine).",
)  # fmt: skip
@click.option(
    "--quantity", type=click.Choice(["simulate", "bound"]), help="Simulate schedules (default), or bounds only."
)
@click.option("--seed", metavar="N", help="Of everything random (default 0).")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def sweep(
    context: click.Context,
    /,
    source: str,
    output: Path,
    force: bool,
    jobs: int | None,
    limit: str | None,
    dask: str | None,
    histogram: Path | None,
    as_json: bool,
    **axes: Any,
) -> None:
    """Bounds and simulated times over topologies x failures x sizes, as a table.

    GRID is a grid file (docs/sweeps.md); with a TOPOLOGY the options from --servers on make the grid. A sweep that was
    interrupted goes on where it was when the same command is given again.
    """
    from optcc.study.cells import SweepResult, row
    from optcc.study.journal import Journal, journal_path
    from optcc.study.monte_carlo import check_histogram, distributions, write_histogram
    from optcc.study.runner import run
    from optcc.study.table import check_output, is_table, write_table
    from optcc.values.units import parse_seconds

    check_output(output)
    exists = InputError("it exists", where=str(output), expected="a name that is free", hint="--force replaces it.")
    kept = output.exists() and not force
    if kept and not journal_path(output).exists():
        raise exists
    for option, own in (("--jobs", jobs), ("--limit", limit)):
        if own is not None and dask is not None:
            raise InputError("one or the other", where=f"{option}, --dask", expected="not both")
    limit_s = None if limit is None else float(parse_seconds(limit, "--limit"))
    if limit_s == 0:
        raise InputError("no time", where="--limit", expected="more than 0", got=limit)
    grid = _grid(source, axes)
    for note in grid.notes:
        click.echo(f"note: {note}", err=True)
    if histogram is not None:
        check_histogram(histogram)
        if not grid.monte_carlo:
            expected = "--monte-carlo, or a grid with monte_carlo failures"
            raise InputError("nothing to draw", where="--histogram", expected=expected)
    cells = grid.cells()
    workers = jobs or (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)
    with Journal(output, "sweep", SweepResult) as journal:
        # With a journal beside it, it is this sweep's own where the sweep was killed after it had written it.
        if kept and not (_done(cells, journal.results) and is_table(output, (row(c, journal.results) for c in cells))):
            raise exists
        reused = sum(bool(cell.jobs) and cell.done(journal.results) for cell in cells)
        if reused:
            click.echo(f"going on: {reused} of {len(cells)} rows are in {journal.path}", err=True)
        try:
            with progress_bar("sweep") as progress:
                run(cells, grid.clusters(), journal, workers=workers, limit_s=limit_s, dask=dask, progress=progress)
            write_table(output, (row(cell, journal.results) for cell in cells))
            found = distributions(grid, cells, journal.results)
            if histogram is not None:
                write_histogram(found, histogram)
        except KeyboardInterrupt:
            ready = sum(cell.done(journal.results) for cell in cells)
            click.echo(
                f"optcc: interrupted; {ready} of {len(cells)} rows are kept in {journal.path}. "
                "Give the same command again to go on.",
                err=True,
            )
            context.exit(130)
        errors = _errors(cells, journal.results)
        click.echo(f"wrote {output}", err=True)
        if histogram is not None:
            click.echo(f"wrote {histogram}", err=True)
        value = {
            "output": str(output), "rows": len(cells), "reused": reused, "errors": sum(errors.values()),
            "seed": grid.seed, "monte_carlo": [one.as_json() for one in found],
        }  # fmt: skip
        emit(as_json, value, lambda: _show(len(cells), errors, grid, found))
        journal.remove()  # the last thing of all: until here the same command goes on


def _grid(source: str, axes: Mapping[str, Any]) -> SweepGrid:
    """The grid of a file or of options."""
    from optcc.study.grid import is_grid, read_grid

    given = {name: value for name, value in axes.items() if value not in (None, ())}
    if not is_grid(source):
        return _grid_of_options(source, given)
    for name in given:
        raise InputError("a grid has its own", where=_option(name), expected="no such option beside a grid file")
    return read_grid(Path(source))


def _grid_of_options(source: str, given: Mapping[str, Any]) -> SweepGrid:
    from optcc.study.grid import FailuresEntry, GridFile, TopologyEntry, Where, grid_of

    typed: dict[str, Any] = {}
    for name, value in given.items():
        many = name in (
            "servers",
            "size",
            "fail_count",
            "left",
            "algorithm",
            "alpha",
            "per_chunk",
            "jitter",
            "segments",
        )
        typed[_FIELDS.get(name, name)] = [v.strip() for v in value.split(",")] if many else value
    typed["nics"] = list(typed["nics"]) if "nics" in typed else None
    topology = TopologyEntry(source, typed.pop("servers", None), typed.pop("nic_rate", None))
    failures = []
    for fields in _ENTRIES:
        entry = {name: value for name in fields if (value := typed.pop(name, None)) is not None}
        failures += [FailuresEntry(**entry)] if entry else []
    grid = GridFile(topologies=[topology], failures=failures or None, sizes=typed.pop("sizes", "1GiB"), **typed)
    return grid_of(grid, Where(_option_at, _option_of, " "))


def _option_at(place: str) -> str:
    """The option behind a place such as ``$.failures[0].count[2]``; what stands for a whole mapping is several."""
    field = re.sub(r"\[\d+\]", "", place).rpartition(".")[2]
    if field in ("topologies", "topology"):
        return "TOPOLOGY"
    if field == "failures":
        return "--fail, --fail-count, --monte-carlo"
    return _option_of(field)


def _option_of(field: str) -> str:
    return _option({new: old for old, new in _FIELDS.items()}.get(field, field))


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")


@contextmanager
def progress_bar(name: str) -> Iterator[Progress]:
    """On stderr, where that is a terminal."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    columns = (
        TextColumn(name), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"),
        TimeRemainingColumn(),
    )  # fmt: skip
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(name, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _done(cells: tuple[SweepCell, ...], results: Mapping[str, SweepResult]) -> bool:
    return all(cell.done(results) for cell in cells)


def _errors(cells: tuple[SweepCell, ...], results: Mapping[str, SweepResult]) -> dict[str, int]:
    """How many rows have each error."""
    found: dict[str, int] = {}
    for cell in cells:
        error = cell.impossible or results[cell.job.key].error
        if error:
            found[error] = found.get(error, 0) + 1
    return found


def _show(rows: int, errors: Mapping[str, int], grid: SweepGrid, found: tuple[Distribution, ...]) -> None:
    click.echo(f"{rows} rows, {sum(errors.values())} of them with an error (column `error`)")
    for error, count in list(errors.items())[:_SHOWN_ERRORS]:
        click.echo(f"  {count} x {error}")
    if len(errors) > _SHOWN_ERRORS:
        click.echo(f"  and {len(errors) - _SHOWN_ERRORS} other errors")
    for one in found:
        _show_distribution(one)
    if found:
        against = "; overhead is simulated, over the fault-free ring at the same size and cost"
        click.echo(f"seed {grid.seed}{against if any(one.achieved for one in found) else ''}")


def _show_distribution(one: Distribution) -> None:
    from optcc.reports.console import percent
    from optcc.values.units import format_seconds, format_size

    inputs = one.inputs
    depth = f", {inputs['segments']} segments" if inputs["segments"] else ""
    depth += f", jitter {percent(inputs['jitter'])}" if inputs["jitter"] else ""
    depth += ", receivers of packets" if inputs["receivers"] == "packets" else ""
    click.echo(
        f"{inputs['topology']}, {inputs['servers']} servers, {format_size(inputs['size'])}, "
        f"alpha {format_seconds(inputs['alpha_s'])}, per chunk {format_seconds(inputs['per_chunk_s'])}{depth}: "
        f"{one.draws} draws, dead NICs {one.mean_failed:.3g} on average (the model's mean is {one.expected_failed:.3g})"
    )
    if one.stopped:
        click.echo(f"  {one.stopped} draws cut a server off: infinite overhead")
    if one.unsimulated:
        click.echo(f"  {one.unsimulated} draws without a simulated time: infinite overhead of {inputs['algorithm']}")
    for label, spread in (("unavoidable", one.unavoidable), (inputs["algorithm"], one.achieved)):
        if spread:
            shown = (f"{k} {'infinite' if v is None else percent(v)}" for k, v in spread.as_json().items())
            click.echo(f"  {label:12} {', '.join(shown)}")
