"""`optcc plan`: the schedule that comes closest to the bound, shown and written as a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from optcc.cli.options import (
    OUTPUT,
    alpha_option,
    check_apart,
    check_output,
    cluster_options,
    emit,
    family_option,
    json_option,
    per_chunk_option,
    read_cluster,
    read_costs,
    read_size,
    say_written,
    segments_option,
    size_option,
)


@click.command()
@click.argument("topology")
@cluster_options
@size_option
@segments_option
@family_option
@alpha_option
@per_chunk_option
@click.option(
    "--jitter", default="0", show_default=True, metavar="PART",
    help="Take what is fastest when every stripe takes longer or shorter by chance, such as by 3% (optcc simulate "
    "--jitter): it waits less for the slowest.",
)  # fmt: skip
@click.option(
    "--in-place", is_flag=True, help="Only schedules that need no receive buffers, for executors that have none."
)
@click.option("-o", "--output", type=OUTPUT, help="Where to write the plan; - is standard output.")
@json_option
def plan(
    topology: str,
    servers: int | None,
    fail: tuple[str, ...],
    nic_rate: str | None,
    ranks: str | None,
    size: str,
    segments: int | None,
    family: str | None,
    alpha: str,
    per_chunk: str,
    jitter: str,
    in_place: bool,
    output: Path | None,
    as_json: bool,
) -> None:
    """The schedule that comes closest to the bound, as a file of its transfers.

    With --alpha, --per-chunk or --jitter, families and depths are tried in virtual time and the fastest is taken.
    """
    from optcc import api
    from optcc.plans.files import save_plan
    from optcc.reports.console import expected, expected_json, plan_json, print_plan, working
    from optcc.schedule.routes import no_collection
    from optcc.values.units import parse_fraction

    check_apart(output, topology)
    check_output(output, as_json)
    cluster, nbytes = read_cluster(topology, servers, fail, nic_rate, ranks), read_size(size)
    costs, spread = read_costs(alpha, per_chunk), float(parse_fraction(jitter, where="--jitter"))
    how: dict[str, Any] = {**costs, "jitter": spread, "in_place": in_place}
    with no_collection(), working("planning") as tell:
        made = api.plan(cluster, nbytes, family=family, segments=segments, **how, progress=tell)
        tell("simulated once more")
        found = expected(made, **costs)
    if output is not None:
        save_plan(made, output)
        say_written(output)
    value = {**plan_json(made), **expected_json(made, found)}
    emit(as_json, value, lambda: print_plan(made, found), beside=output)
