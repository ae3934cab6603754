"""`optcc verify`: the check that a plan, or what was exported of one, is an AllReduce."""

from __future__ import annotations

from pathlib import Path

import click

from optcc.cli.options import algorithm_option, emit, json_option


@click.command()
@click.argument("plan_file", metavar="PLAN", type=click.Path(path_type=Path))
@algorithm_option
@json_option
def verify(plan_file: Path, algorithm: str, as_json: bool) -> None:
    """Replay a plan's schedule by contributor sets: every byte of every rank summed exactly once.

    PLAN may be a file of `optcc export`, too. It is run by the rules of its target, and the output says whether it
    carries the plan's order of sends.
    """
    from optcc.cli.export import show_reread
    from optcc.cli.options import bound_in_words, load_proved
    from optcc.reports.console import working
    from optcc.simulation.verifier import verify as check

    if algorithm == "optcc" and show_reread(plan_file, as_json):
        return
    with working("verifying"):
        made = load_proved(plan_file)
        checked = check(made.baseline(algorithm).schedule())
    value = {
        "plan_id": made.plan_id,
        "algorithm": algorithm,
        "correct": True,
        "transfers": checked.transfers,
        "pieces": checked.pieces,
        "bound_s": float(made.bound.seconds),
        "bound": bound_in_words(made),
    }

    def show() -> None:
        click.echo(
            f"correct: {checked.transfers} transfers, every byte of {len(made.cluster.ranks)} ranks "
            f"({checked.pieces} pieces) holds every contribution exactly once"
        )
        click.echo(f"bound: {value['bound']}")

    emit(as_json, value, show)
