"""What people see of a diagnosis."""

from __future__ import annotations

from math import inf

from rich.table import Table
from rich.text import Text

from optcc.diagnose.diagnosis import Diagnosis
from optcc.diagnose.doubt import Sure
from optcc.diagnose.keep import SOURCES, KeepOrDrain
from optcc.diagnose.verdict import Finding, Outcome, Verdict
from optcc.discover.topology import counted, listed
from optcc.reports.bound import print_repairs, print_together
from optcc.reports.console import percent, plain_table, show
from optcc.values.units import format_seconds, format_size

MOST = 12


def print_diagnosis(found: Diagnosis) -> None:
    """The verdict, what it rests on, what is possible, what to repair, and whether to drain."""
    verdict = found.verdict
    show(Text(_headline(verdict), "bold"))
    if verdict.findings:
        _print_findings(verdict.findings)
    for finding in verdict.findings[:MOST]:
        for line in _because(finding):
            show(f"  {line}")
    for line in verdict.together:
        show(line)
    for path in verdict.paths[:MOST]:
        show(f"{path.where}: {path.kind} at {percent(path.left)}, though {', '.join(path.nics)} are fast elsewhere: "
             "look at the path between, or measure again")  # fmt: skip
    if verdict.findings and verdict.unmeasured:
        names = listed(verdict.unmeasured, MOST)
        show(f"nothing shows these at full rate (not measured, or with slower NICs alone): {names}")
    for sign in verdict.signs[:MOST]:
        show(f"also said, of {sign.server}: {sign.what} ({sign.where})")
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


def _headline(verdict: Verdict) -> str:
    if verdict.outcome is Outcome.HEALTHY:
        unseen = counted(len(verdict.unmeasured), "NIC")
        missing = f"; {unseen} not seen at full rate" if verdict.unmeasured else ""
        return f"nothing that was measured is slow{missing}"
    if verdict.outcome is Outcome.CANNOT_TELL:
        if not verdict.findings:
            return f"cannot tell: {_why_not(verdict)}"
        one = next(finding for finding in verdict.findings if finding.sure is Sure.POSSIBLE)
        others = counted(len(one.twins), "other NIC") if one.twins else "others"
        return f"cannot tell which NIC is slow: {one.nic} explains it, and as well would {others}"
    count = len(verdict.findings)
    open_ = sum(finding.sure is Sure.POSSIBLE for finding in verdict.findings)
    doubt = f"; {open_} of them could be another" if open_ else ""
    return f"{counted(count, 'degraded NIC')} explain{'s' * (count == 1)} what is slow{doubt}"


def _why_not(verdict: Verdict) -> str:
    """Why nothing is concluded where no NIC is named."""
    if verdict.paths:
        return f"{counted(len(verdict.paths), 'measurement')} too slow, and no NIC explains it"
    if low := [standard.kind for standard in verdict.standards if standard.low]:
        return f"{', '.join(low)} far below nameplate everywhere, so that nothing tells the healthy NICs"
    return "nothing measured what it takes"


def _print_findings(findings: tuple[Finding, ...]) -> None:
    table = Table(box=None, pad_edge=False)
    for column in ("NIC", "out", "in", "+-", "sure", "explains"):
        table.add_column(column)
    for one in findings[:MOST]:
        rates = [_left(rate) for rate in (one.out, one.into)]
        table.add_row(
            one.nic, *rates, percent(2 * one.spread), str(one.sure), counted(one.explains, "slow measurement")
        )
    show(table)
    if len(findings) > MOST:
        show(f"and {len(findings) - MOST} more")


def _left(rate: float | None) -> str:
    return "-" if rate is None else "dead" if rate == 0 else percent(rate)


def _because(one: Finding) -> list[str]:
    lines = [f"{one.nic}: {', '.join(one.where)}" + (", ..." if one.explains > len(one.where) else "")]
    lines += [f"{one.nic}: {sign.what} ({sign.where})" for sign in one.signs[:3]]
    if one.twins:
        more = f" and {len(one.twins) - MOST} more" if len(one.twins) > MOST else ""
        lines.append(f"{one.nic}: as well could be {', '.join(one.twins[:MOST])}{more}")
    elif one.sure is not Sure.CERTAIN and one.instead:
        lines.append(f"{one.nic}: else {', '.join(one.instead[:MOST])}, {one.more:.1f} faults more")
    return lines


def _print_fit(verdict: Verdict) -> None:
    table = plain_table()
    counts = f"{verdict.measured} measurements, {verdict.averaged} of them different"
    table.add_row("fit", f"{counts}; noise {percent(verdict.noise)}, left over {verdict.misfit:.2f} times that")
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
