"""`optcc reproduce`: the evaluation as one command."""

from __future__ import annotations

import os
from pathlib import Path

import click

from optcc.cli.options import emit
from optcc.cli.sweep import progress_bar
from optcc.files.writing import check_place, is_plain


@click.command()
@click.option("--quick", is_flag=True, help="A small grid, for a check that everything works: a minute.")
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False),
    help="The page; its figures go beside it (default: docs/evaluation.md, out/evaluation.md when quick).",
)  # fmt: skip
@click.option("--jobs", type=click.IntRange(1, 1024), help="Processes on this machine (default: its cores).")
@click.option(
    "--mttf", default="2.7h", show_default=True, metavar="TIME",
    help="Between two interruptions, by any cause, of a job of --mttf-gpus GPUs.",
)  # fmt: skip
@click.option("--mttf-gpus", default=16384, show_default=True, type=click.IntRange(1), help="GPUs of that job.")
@click.option(
    "--nic-share", default="42/419", show_default=True, metavar="PART", help="Share of that which is lost NICs."
)
@click.option("--repair-time", default="8h", show_default=True, metavar="TIME", help="From a failure to the new NIC.")
@click.option("--restart", default="68min", show_default=True, metavar="TIME", help="Lost by a restart.")
@click.option(
    "--failover", default="0.3s", show_default=True, metavar="TIME",
    help="Lost by going on after a failure instead: until a silent NIC is left (docs/failover.md).",
)  # fmt: skip
@click.option("--step", default="6s", show_default=True, metavar="TIME", help="A step of the fault-free job.")
@click.option("--exposed", default="20%", show_default=True, metavar="PART", help="Share of a step that is AllReduce.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
def reproduce(
    quick: bool,
    output: Path | None,
    jobs: int | None,
    mttf: str,
    mttf_gpus: int,
    nic_share: str,
    repair_time: str,
    restart: str,
    failover: str,
    step: str,
    exposed: str,
    as_json: bool,
) -> None:
    """Every scheme on every failure in one simulator: tables and figures as one page.

    The full grid takes about a quarter of an hour of processor time, the quick one a minute. What is done is kept
    beside the page until it is written: after an interrupt the same command goes on.
    """
    from optcc.errors import InputError
    from optcc.study.cells import SweepResult
    from optcc.study.evaluation import bundled
    from optcc.study.journal import Journal
    from optcc.study.page import code, evaluate, write
    from optcc.study.training import TrainingJob
    from optcc.values.units import parse_fraction, parse_seconds, parse_share

    times = {"--mttf": mttf, "--repair-time": repair_time, "--restart": restart, "--step": step}
    seconds = {option: float(parse_seconds(text, where=option)) for option, text in times.items()}
    for option, value in seconds.items():
        if not value > 0:
            raise InputError("no time", where=option, expected="more than 0", got=times[option])
    output = output or Path("out" if quick else "docs", "evaluation.md")
    share = parse_share(nic_share, where="--nic-share")
    job = TrainingJob(
        mttf_s=seconds["--mttf"],
        mttf_gpus=mttf_gpus,
        nic_share=float(share),
        repair_s=seconds["--repair-time"],
        restart_s=seconds["--restart"],
        exposed=float(parse_fraction(exposed, where="--exposed")),
        step_s=seconds["--step"],
        failover_s=float(parse_seconds(failover, where="--failover")),
    )
    if is_plain(output):
        raise InputError("several files", where="-o", expected="FILE: its figures go beside it", got=str(output))
    check_place(output, make_folder=True)
    grid = bundled("quick.yaml" if quick else "full.yaml")
    with Journal(output, "evaluation", SweepResult, code=code()) as kept:
        if kept.results:
            click.echo(f"going on: {len(kept.results)} results are in {kept.path}", err=True)
        try:
            with progress_bar("evaluating") as progress:
                made = evaluate(
                    grid,
                    job,
                    jobs=jobs or os.cpu_count() or 1,
                    command="optcc reproduce" + (" --quick" if quick else ""),
                    journal=kept,
                    progress=progress,
                )
            written = write(made, output)
            kept.remove()
        except KeyboardInterrupt:
            click.echo(
                f"optcc: interrupted; {len(kept.results)} of {grid.work} results are kept in {kept.path}. "
                "Give the same command again to go on.",
                err=True,
            )
            click.get_current_context().exit(130)
    if not as_json:
        for path in written:
            click.echo(f"wrote {path}", err=True)
    summary = {
        "written": [str(path) for path in written],
        "cells": made.cells,
        "misses": made.misses,
        "simulated": True,
    }
    emit(
        as_json,
        summary,
        lambda: click.echo(f"{made.cells - made.misses} of {made.cells} cells keep the target (simulated)"),
    )
