"""`optcc doctor`: which libraries and devices are here, and what each missing one would give."""

from __future__ import annotations

from pathlib import Path

import click

from optcc.cli.options import (
    emit,
    json_option,
)


@click.command()
@click.option(
    "--sysfs", type=click.Path(path_type=Path, exists=True, file_okay=False), metavar="DIR",
    help="Devices of a copy of another machine: a directory with its sys/.",
)  # fmt: skip
@json_option
def doctor(sysfs: Path | None, as_json: bool) -> None:
    """What of numpy, torch, cupy, libibverbs, devices and rates is here, and what each missing part would give."""
    from optcc.reports.console import working
    from optcc.reports.doctor import examine, examine_torch, print_doctor
    from optcc.runtime.compiled.finding import examine_path
    from optcc.runtime.verbs.gpu_paths import examine_gpus

    with working("looking at libraries and devices"):
        here = [] if sysfs else [examine_path(), *examine_torch(), *examine_gpus()]
        findings = [*examine(sysfs), *here]
    emit(as_json, {"parts": [finding.as_json() for finding in findings]}, lambda: print_doctor(findings))
