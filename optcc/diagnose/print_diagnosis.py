"""What people see of a diagnosis."""

from __future__ import annotations

from math import inf
from pathlib import Path

from rich.table import Table
from rich.text import Text

from optcc.diagnose.diagnosis import Diagnosis
from optcc.diagnose.evidence import NicDirections
from optcc.diagnose.fit import Sure
from optcc.diagnose.keep import SOURCES, KeepOrDrain
from optcc.diagnose.verdict import Finding, Outcome, Verdict
from optcc.discover.topology import counted, listed
from optcc.files.writing import written
from optcc.reports.console import percent, plain_table, print_repairs, print_together, show
from optcc.values.units import format_seconds, format_size

MOST = 12
FEW = 3
"""NICs that fit alike up to which they are named one by one."""
LOOK_FOR = "no GPU-direct RDMA, ACS on PCI switches, one port of a bond in use, a small MTU"
"""What mostly slows all NICs of a cluster alike."""


def print_diagnosis(found: Diagnosis) -> None:
    """The verdict, what it rests on, what is possible, what to repair, and whether to drain."""
    verdict, ports = found.verdict, NicDirections(found.cluster)
    show(Text(_headline(verdict, ports), "bold"))
    if verdict.findings:
        _print_findings(verdict.findings, ports)
    for finding in verdict.findings[:MOST]:
        for line in _because(finding, ports):
            show(f"  {line}")
    for one in verdict.servers:
        show(f"{one.server}: {one.sure}, {len(one.nics)} of its NICs fit alike: measure each of them alone")
    _print_alike(verdict)
    for line in verdict.together:
        show(line)
    for path in verdict.paths[:MOST]:
        show(f"{path.where}: {path.kind} at {percent(path.left)}, though {', '.join(path.nics)} are fast elsewhere: "
             "look at the path between, or measure again")  # fmt: skip
    _print_rest(len(verdict.paths), "slow measurements")
    if verdict.findings and verdict.unmeasured:
        names = listed(verdict.unmeasured, MOST)
        show(f"nothing shows these at full rate (not measured, or with slower NICs alone): {names}")
    for sign in verdict.signs[:MOST]:
        show(f"also said, of {sign.server}: {sign.what} ({sign.where})")
    _print_rest(len(verdict.signs), "things said")
    _print_fit(verdict)
    if found.achieved:
        _print_achieved(found)
    if found.overhead:
        size = format_size(found.question.nbytes)
        show(f"no AllReduce of {size} on the cluster as it is can be faster than {percent(found.overhead)} "
             "above the healthy one")  # fmt: skip
    if found.repair_first:
        print_repairs(found.repair_first)
        print_together(found.repair_together)
    if found.keep is not None:
        _print_keep(found.keep, found)
    for measure in verdict.measure:
        show(f"measure: {measure.why}", f"  {measure.command}")
    for line in found.evidence.unused[:MOST]:
        show(f"not used: {line}")
    _print_rest(len(found.evidence.unused), "things that are not used")


def _print_rest(count: int, what: str) -> None:
    """What is left out of a list of `count`."""
    if count > MOST:
        show(f"and {count - MOST} more {what}")


def _print_alike(verdict: Verdict) -> None:
    for high in verdict.beyond:
        show(f"{high.where}: {high.kind} at {percent(high.reached)} of nameplate, which cannot be: {high.why}")
    for kind in verdict.alike:
        all_ = "all alike, so that the cause is one for all" if kind.alike else "at most"
        show(f"{kind.kind}: {percent(kind.reached)} of nameplate, {all_}")
    for cause in verdict.causes:
        show(f"slows all alike: {cause}")
    if verdict.alike and not verdict.causes:
        show(f"look for {LOOK_FOR}; NCCL's log (NCCL_DEBUG=INFO) among the evidence shows some of these")


def _headline(verdict: Verdict, ports: NicDirections) -> str:
    if verdict.outcome is Outcome.HEALTHY:
        unseen = counted(len(verdict.unmeasured), "NIC")
        missing = f"; {unseen} not seen at full rate" if verdict.unmeasured else ""
        return f"nothing that was measured is slow{missing}"
    if verdict.outcome is Outcome.CANNOT_TELL:
        if not verdict.findings:
            return f"cannot tell: {_why_not(verdict)}"
        one = max((f for f in verdict.findings if f.sure is Sure.POSSIBLE), key=lambda f: len(f.twins))
        if not one.twins:
            return f"cannot tell which NIC is slow: {one.nic} explains it, and as well would others"
        if len(one.twins) < FEW:
            return f"cannot tell which NIC is slow: {', '.join((one.nic, *one.twins))} explain it alike"
        which = _who(one, ports).removeprefix("one ")
        return f"cannot tell which {which} is slow: each explains it as well as the {len(one.twins)} others"
    if verdict.servers:
        first = verdict.servers[0]
        more = f", and {counted(len(verdict.servers) - 1, 'other server')}" if len(verdict.servers) > 1 else ""
        alone = sum(finding.sure is not Sure.POSSIBLE for finding in verdict.findings)
        nics = f"; besides {counted(alone, 'NIC')} elsewhere" if alone else ""
        return f"{first.server} is slow{more}: which of its NICs cannot be told{nics}"
    count = len(verdict.findings)
    open_ = sum(finding.sure is Sure.POSSIBLE for finding in verdict.findings)
    doubt = f"; {open_} of them could be another" if open_ else ""
    return f"{counted(count, 'degraded NIC')} explain{'s' * (count == 1)} what is slow{doubt}"


def _who(one: Finding, ports: NicDirections) -> str:
    """The NIC; where many fit as well, what these have in common."""
    if len(one.twins) < FEW:
        return one.nic
    numbers = [number for number, name in enumerate(ports.names) if name in {one.nic, *one.twins}]
    rails = {ports.rail(number) for number in numbers}
    servers = {ports.names[number].partition("/")[0] for number in numbers}
    place = f" of {servers.pop()}" if len(servers) == 1 else f" of rail {rails.pop()}" if len(rails) == 1 else ""
    return f"one of {len(numbers)} NICs{place}"


def _why_not(verdict: Verdict) -> str:
    """Why nothing is concluded where no NIC is named."""
    if verdict.paths:
        return f"{counted(len(verdict.paths), 'measurement')} too slow, and no NIC explains it"
    if verdict.alike:
        far = verdict.alike[0]
        who = "all are slow alike" if far.alike else "nothing is as fast as it should be"
        return f"{who}, {far.kind} at {percent(far.reached)} of nameplate"
    if low := [standard.kind for standard in verdict.standards if standard.low]:
        return f"{', '.join(low)} far below nameplate everywhere, so that nothing tells the healthy NICs"
    return "nothing measured what it takes"


def _print_findings(findings: tuple[Finding, ...], ports: NicDirections) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("NIC", "out", "in", "+-", "sure", "explains"):
        table.add_column(column)
    for one in findings[:MOST]:
        rates = [_left(rate) for rate in (one.out, one.into)]
        table.add_row(
            _who(one, ports), *rates, percent(2 * one.spread), str(one.sure), counted(one.explains, "slow measurement")
        )
    show(table)
    if len(findings) > MOST:
        show(f"and {len(findings) - MOST} more")


def _left(rate: float | None) -> str:
    return "-" if rate is None else "dead" if rate == 0 else percent(rate)


def _because(one: Finding, ports: NicDirections) -> list[str]:
    who = _who(one, ports)
    lines = [f"{who}: {', '.join(one.where)}" + (", ..." if one.explains > len(one.where) else "")]
    lines += [f"{one.nic}: {sign.what} ({sign.where})" for sign in one.signs[:3]]
    if one.twins:
        alike = [name for name in ports.names if name in one.twins or (name == one.nic and who != name)]
        lines.append(f"{who}: {'as well could be ' * (who == one.nic)}{listed(alike, MOST)}")
    elif one.sure is not Sure.CERTAIN and one.instead:
        lines.append(f"{one.nic}: else {', '.join(one.instead[:MOST])}, {one.more:.1f} faults more")
    return lines


def _print_fit(verdict: Verdict) -> None:
    table = plain_table()
    counts = f"{verdict.measured} measurements, {verdict.averaged} of them different"
    noise = f"{percent(verdict.noise)} between runs"
    table.add_row("fit", f"{counts}; noise {noise}, left over {verdict.misfit:.2f} times that")
    for standard in verdict.standards:
        if standard.kind not in ("link", "failure", "counters"):
            low, few = "most reach less than half of it", "fewer than 5 measurements of NICs that are well"
            how = "measured" if standard.measured else f"assumed: {low if standard.low else few}"
            table.add_row("", f"healthy {standard.kind}: {percent(standard.part)} of nameplate, {how}")
    show(table)


def _print_achieved(found: Diagnosis) -> None:
    table = Table(title="achieved, over the least possible", title_justify="left", title_style="bold", box=None,
                  pad_edge=False)  # fmt: skip
    for column in ("collective", "size", "servers", "time", "healthy bound", "reached", "suspected bound", "reached"):
        table.add_column(column)
    for one in found.achieved:
        now = one.over_suspected
        table.add_row(
            one.kind,
            format_size(one.nbytes),
            str(one.servers),
            format_seconds(one.time_s),
            format_seconds(one.healthy_costs_s),
            percent(one.over_healthy),
            "impossible" if one.suspected_costs_s is None else format_seconds(one.suspected_costs_s),
            "-" if now is None else percent(now),
        )
    show(table)


def _print_keep(keep: KeepOrDrain, found: Diagnosis) -> None:
    table = Table(title="keep or drain", title_justify="left", title_style="bold", box=None, pad_edge=False)
    for column in ("", "AllReduce", "lost per day", "lost until the repair", "draining pays after"):
        table.add_column(column)
    for one in keep.choices:
        longer = "never ends" if one.overhead == inf else f"+{percent(one.overhead)}"
        even = "never" if one.break_even_s == inf else f"{one.break_even_s / 3600:.1f} h"
        table.add_row(f"keep, {one.name}", longer, _hours(one.lost_per_day_s), _hours(one.lost_until_repair_s), even)
    drain = keep.drain
    longer = f"+{percent(drain.overhead)}" if drain.overhead else ""
    once = f"{_hours(drain.lost_per_day_s)} and {_hours(drain.at_once_s)} once"
    table.add_row(f"drain {listed(drain.servers)}", longer, once, _hours(drain.lost_until_repair_s), "")
    show(table)
    costs = found.question.costs
    show(f"  for a step of {format_seconds(costs.step_s)} (--step: {SOURCES['step_s']})",
         f"  of which {percent(costs.exposed)} is exposed AllReduce (--exposed: {SOURCES['exposed']})",
         f"  {_hours(costs.restart_s)} for a restart (--restart: {SOURCES['restart_s']})",
         f"  {costs.restarts} of them (--restarts: {SOURCES['restarts']})",
         f"  {_hours(costs.repair_s)} until the repair (--repair: {SOURCES['repair_s']})",
         f"  {counted(costs.spares, 'spare server')} (--spares: {SOURCES['spares']})")  # fmt: skip
    show(keep.advice)


def _hours(seconds: float) -> str:
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


MOST_SERVERS = 64
"""Rows; of more servers those with findings, then the first."""
EMPTY = "#eeeeee"


def draw(found: Diagnosis, path: Path) -> None:
    """Write it as SVG, PNG or PDF, by the name. Raises InputError where it cannot be written."""
    from matplotlib import colormaps
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    left = {one.nic: one for one in found.verdict.findings}
    unmeasured = set(found.verdict.unmeasured)
    servers = [s for s in found.cluster.servers if any(f"{s.name}/{n.name}" in left for n in s.nics)]
    servers += [s for s in found.cluster.servers if s not in servers][: MOST_SERVERS - len(servers)]
    servers = [s for s in found.cluster.servers if s in servers][:MOST_SERVERS]
    widest = max(len(server.nics) for server in servers)
    figure = Figure(figsize=(2.6 + 0.62 * widest, 1.3 + 0.34 * len(servers)), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["RdYlBu"]
    for row, server in enumerate(servers):
        for column, nic in enumerate(server.nics):
            name = f"{server.name}/{nic.name}"
            one = left.get(name)
            colour = colours(one.left) if one else EMPTY if name in unmeasured else colours(1.0)
            edge = "black" if one and one.sure == "certain" else "white"
            axes.add_patch(Rectangle((column - 0.45, row - 0.42), 0.9, 0.84, facecolor=colour, edgecolor=edge))
            if one:
                mark = "?" if one.sure == "possible" else ""
                axes.text(column, row, f"{100 * one.left:.0f}{mark}", ha="center", va="center", fontsize=8)
            elif name in unmeasured:
                axes.text(column, row, "-", ha="center", va="center", fontsize=8, color="#888888")
    axes.set_xlim(-0.5, widest - 0.5)
    axes.set_ylim(len(servers) - 0.5, -0.5)
    longest = max(servers, key=lambda server: len(server.nics))
    axes.set_xticks(range(widest), [nic.name for nic in longest.nics], fontsize=8, rotation=45)
    axes.set_yticks(range(len(servers)), [server.name for server in servers], fontsize=8)
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    scale = ScalarMappable(Normalize(0, 100), colours)
    figure.colorbar(scale, ax=axes, shrink=0.8, label="% of the rate left")
    axes.set_title("framed: certain; ?: one of several; -: not seen at full rate", fontsize=8, loc="left")
    with written(path) as file:
        figure.savefig(file, format=path.suffix[1:])
