"""`optcc diagnose`: from measurements, logs and counters to the NICs that are slow, what it costs, keep or drain."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from optcc.cli.options import (
    alpha_option,
    check_apart,
    check_output,
    emit,
    json_option,
    load_source,
    per_chunk_option,
    read_costs,
    read_size,
    say_written,
    size_option,
    source_options,
)
from optcc.errors import InputError

if TYPE_CHECKING:
    from optcc.diagnose.evidence import Evidence, NicDirections
    from optcc.diagnose.keep import InterruptionCosts
    from optcc.discover import Topology
    from optcc.values.cluster import Cluster

LONGEST_WATCH_S = 3600.0


@click.command()
@click.argument("topology")
@click.argument("evidence", nargs=-1)
@click.option("--servers", type=int, metavar="N", help="Replicate a one-server topology N times.")
@click.option("--nic-rate", metavar="RATE", help="For NICs without one; NAME=RATE for NICs of that name.")
@source_options
@click.option("--watch", metavar="TIME", help="Read the counters of SERVER=/sys twice, so long apart.")
@click.option("--interval", metavar="TIME", help="Between two copies of one server's sysfs that are given.")
@click.option("--noise", metavar="PART", help="Spread between runs, such as 3% (default: as the runs show it).")
@click.option("--degraded", metavar="PART", help="What a NIC lacks at least where it is called degraded (default 5%).")
@size_option
@alpha_option
@per_chunk_option
@click.option("--step", metavar="TIME", help="Of a fault-free step of the job (default 6s).")
@click.option("--exposed", metavar="PART", help="The part of it that is AllReduce and not hidden (default 20%).")
@click.option("--restart", metavar="TIME", help="Lost by a restart, work since the checkpoint included (68min).")
@click.option("--restarts", type=click.IntRange(0, 100), metavar="N", help="Restarts that draining takes (2).")
@click.option("--spares", type=click.IntRange(0, 65536), metavar="N", help="Servers that stand by (0).")
@click.option("--repair", metavar="TIME", help="Until the server is whole again (default 8h).")
@click.option(
    "--picture", type=click.Path(path_type=Path, dir_okay=False), help="Draw the NICs: FILE.svg, .png or .pdf."
)
@click.option(
    "--prometheus", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE",
    help="Write metrics for node_exporter's textfile collector.",
)  # fmt: skip
@click.option("--check", is_flag=True, help="Exit status 1 where a NIC is degraded, 3 where it cannot be told.")
@click.option(
    "--check-server", metavar="SERVER", help="Exit status 1 where SERVER is to be drained, 3 where it cannot be told."
)
@json_option
def diagnose(
    topology: str,
    evidence: tuple[str, ...],
    servers: int | None,
    nic_rate: str | None,
    watch: str | None,
    interval: str | None,
    noise: str | None,
    degraded: str | None,
    size: str,
    alpha: str,
    per_chunk: str,
    step: str | None,
    exposed: str | None,
    restart: str | None,
    restarts: int | None,
    spares: int | None,
    repair: str | None,
    picture: Path | None,
    prometheus: Path | None,
    check: bool,
    check_server: str | None,
    as_json: bool,
) -> None:
    """Which NICs of TOPOLOGY, which is as it should be, are slow by what the EVIDENCE says, and what that costs.

    EVIDENCE is any number of files: nccl-tests' output (sendrecv, all_reduce, ...; text or JSON), NCCL's log, NCCL
    Inspector's files, what ncclras prints, what optcc calibrate wrote, files of the plugin for NCCL (OPTCC_METRICS);
    SERVER=DIR for a server's /sys or a copy of it, given twice for what its counters counted in between; SERVER=FILE
    for what ibstat, rdma link and others print, and SERVER/NIC=FILE for perfquery, ethtool -S or mlxlink.
    """
    from optcc.diagnose.diagnosis import Question, diagnosis_json, servers_to_drain, write_metrics
    from optcc.diagnose.diagnosis import diagnose as conclude
    from optcc.diagnose.evidence import NicDirections
    from optcc.diagnose.fit import DEGRADED
    from optcc.diagnose.print_diagnosis import draw, print_diagnosis
    from optcc.reports.console import working
    from optcc.reports.metrics import need_prometheus

    if picture is not None and picture.suffix not in (".svg", ".png", ".pdf"):
        raise InputError("not a picture", where="--picture", expected="FILE.svg, .png or .pdf", got=str(picture))
    for output, option in ((picture, "--picture"), (prometheus, "--prometheus")):
        check_output(output, as_json, option)
        for source in evidence:
            check_apart(output, source, option)
    if prometheus is not None:
        need_prometheus("--prometheus")
    found = load_source(topology, servers, nic_rate)
    for note in found.notes:
        click.echo(f"note: {note}", err=True)
    if found.measured is not None:
        click.get_current_context().meta["optcc.measured"] = found.measured
    ports = NicDirections(_nameplate(found))
    if check and check_server is not None:
        raise InputError("one or the other", where="--check, --check-server", expected="not both")
    asked_for = None if check_server is None else ports.need_server(check_server, "--check-server")
    spread, lacks = _part(noise, "--noise"), _part(degraded, "--degraded")
    asked = Question(
        read_size(size),
        spread,
        DEGRADED if lacks is None else lacks,
        **read_costs(alpha, per_chunk),
        costs=_costs(step, exposed, restart, restarts, spares, repair),
    )
    with working("reading"):
        seen = _gather(evidence, ports, watch, interval)
    with working("explaining"):
        made = conclude(ports.cluster, seen, asked)
    if picture is not None:
        draw(made, picture)
        say_written(picture)
    if prometheus is not None:
        write_metrics(made, prometheus)
        say_written(prometheus)
    emit(as_json, diagnosis_json(made), lambda: print_diagnosis(made))
    bad = asked_for in servers_to_drain(made) if asked_for else check and made.verdict.outcome == "degraded"
    if bad:
        raise SystemExit(1)
    if (check or asked_for) and made.verdict.outcome == "cannot tell":
        raise SystemExit(3)


def _part(text: str | None, option: str) -> float | None:
    from optcc.values.units import parse_fraction

    part = None if text is None else float(parse_fraction(text, option))
    if part is not None and not 0 < part < 1:
        raise InputError("out of range", where=option, expected="more than 0 and less than 1", got=text)
    return part


def _nameplate(found: Topology) -> Cluster:
    """The healthy cluster: before any failure, and at nameplate where a file has measured rates beside them."""
    from dataclasses import replace

    cluster = found.cluster.fault_free
    if found.measured is None:
        return cluster
    plates = found.measured.nameplate
    servers = []
    for server in cluster.servers:
        nics = []
        for nic in server.nics:
            rate = plates.get(f"{server.name}/{nic.name}")
            nics.append(nic if rate is None else replace(nic, out_rate=rate, in_rate=rate))
        servers.append(replace(server, nics=tuple(nics)))
    return replace(cluster, servers=tuple(servers))


def _costs(
    step: str | None,
    exposed: str | None,
    restart: str | None,
    restarts: int | None,
    spares: int | None,
    repair: str | None,
) -> InterruptionCosts:
    from dataclasses import replace

    from optcc.diagnose.keep import InterruptionCosts
    from optcc.values.units import parse_seconds, parse_share

    given: dict[str, Any] = {}
    for option, name, text in (("--step", "step_s", step), ("--restart", "restart_s", restart),
                               ("--repair", "repair_s", repair)):  # fmt: skip
        if text is not None:
            given[name] = float(parse_seconds(text, option))
    if exposed is not None:
        given["exposed"] = float(parse_share(exposed, "--exposed"))
    given |= {name: count for name, count in (("restarts", restarts), ("spares", spares)) if count is not None}
    if given.get("step_s") == 0:
        raise InputError("a step of no time", where="--step", expected="more than 0", got=step)
    return replace(InterruptionCosts(), **given)


def _gather(evidence: tuple[str, ...], ports: NicDirections, watch: str | None, interval: str | None) -> Evidence:
    """What the sources say; with --watch those that are directories are read twice."""
    from optcc.diagnose.readers import gather, watched
    from optcc.values.units import parse_seconds

    if watch is not None and interval is not None:
        raise InputError("one or the other", where="--watch, --interval", expected="not both")
    apart = None if interval is None else float(parse_seconds(interval, "--interval"))
    if apart is not None and apart <= 0:
        raise InputError("no time", where="--interval", expected="more than 0", got=interval)
    if watch is None:
        return gather(evidence, ports, apart)
    seconds = float(parse_seconds(watch, "--watch"))
    if not 0 < seconds <= LONGEST_WATCH_S:
        raise InputError("out of range", where="--watch", expected="more than 0, at most 1 h", got=watch)
    return watched(evidence, ports, seconds, time.sleep)
