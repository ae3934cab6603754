"""`optcc export`: a plan in the format of another executor, simulator or viewer, proved on the file as written."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from optcc.cli.options import OUTPUT, algorithm_option, check_apart, check_output, emit, json_option
from optcc.files.writing import is_stdout
from optcc.values.units import format_seconds

if TYPE_CHECKING:
    from optcc.export.formats import Exported


@click.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@click.option(
    "--format", "format_name", required=True, type=click.Choice(["mscclpp", "chakra", "goal", "perfetto"]),
    help="An MSCCL++ execution plan (JSON), Chakra traces for ASTRA-sim, a GOAL schedule for LogGOPSim and ATLAHS, "
    "a Chrome trace.",
)  # fmt: skip
@click.option(
    "-o", "--output", required=True, type=OUTPUT,
    help="Where to write; - is standard output; Chakra appends .RANK.et.",
)  # fmt: skip
@click.option("--segments", type=int, metavar="K", help="Pipeline depth (default: by the target's clock).")
@click.option("--chunks", type=int, metavar="N", help="Equal chunks of the buffer (default: by the target's clock).")
@click.option(
    "--threadblocks", type=int, metavar="B", help="Threadblocks of a GPU at most (default: by the target's clock)."
)
@algorithm_option
@json_option
def export(
    plan_file: Path,
    format_name: str,
    output: Path,
    segments: int | None,
    chunks: int | None,
    threadblocks: int | None,
    algorithm: str,
    as_json: bool,
) -> None:
    """Write PLAN in another format, read it back, and run it by the rules of its target.

    MSCCL++ moves equal chunks, so unequal shares are rounded; what that costs over the bound is printed. So is its
    time: a model of the executor runs the file, and this time decides depth, chunks and threadblocks. A
    plan that does not fit a limit of the format is refused: fewer --segments make it smaller.
    """
    from optcc.cli.options import load_proved
    from optcc.export.formats import write
    from optcc.reports.console import working

    check_apart(output, plan_file)
    check_output(output, as_json)
    # On a terminal the spinner would overwrite what goes to standard output.
    with nullcontext() if is_stdout(output) else working("exporting"):
        made = load_proved(plan_file).baseline(algorithm)
        done = write(made, format_name, output, segments=segments, chunks=chunks, threadblocks=threadblocks)
    emit(as_json, done.as_json(), lambda: _show(done), beside=output)


def _show(done: Exported) -> None:
    files = str(done.files[0]) if len(done.files) == 1 else f"{done.files[0]} to {done.files[-1].name}"
    click.echo(f"wrote     {'standard output' if is_stdout(done.files[0]) else files}")
    click.echo(f"proved    {done.operations} operations, read back and run by the rules of {done.format}")
    if done.rounded is not None:
        depth = done.rounded.plan.segments
        click.echo(
            f"rounded   to {done.rounded.chunks} equal chunks, {depth} segment{'s' * (depth != 1)} deep, "
            f"{done.threadblocks} threadblock{'s' * (done.threadblocks != 1)} a GPU"
        )
        click.echo(
            f"over the bound  {float(done.rounded.ratio):.4f} with perfect overlap, "
            f"{done.rounded.simulated_ratio:.4f} simulated (both without latency)"
        )
    if done.predicted_s is not None:
        more = "" if done.ideal_s is None else f", {format_seconds(done.ideal_s)} if nothing but the links took time"
        click.echo(f"predicted {format_seconds(done.predicted_s)} by the target's clock{more}")
    elif done.ideal_s is not None:
        click.echo(f"simulated {format_seconds(done.ideal_s)} if nothing but the links took time")
    for warning in done.warnings:
        click.echo(f"warning   {warning}")
    for note in done.notes:
        click.echo(f"note      {note}")


def show_reread(path: Path, as_json: bool) -> bool:
    """`optcc verify` of an exported file; False where `path` is none."""
    from optcc.export.formats import reader_of
    from optcc.reports.console import working

    reader = reader_of(path)
    if reader is None:
        return False
    with working("verifying"):
        found = reader()

    def show() -> None:
        click.echo(f"correct: {found.operations} operations by the rules of {found.format}, {found.sums}")
        click.echo(f"order of sends  {found.order}")

    emit(as_json, {"correct": True, **asdict(found)}, show)
    return True
