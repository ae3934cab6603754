"""`optcc schema`: the JSON Schema of plan files, and where the reader in C is."""

from __future__ import annotations

from importlib.resources import files

import click

from optcc.outputs import to_stdout


@click.command()
@click.option("--include", is_flag=True, help="Print the folder of optcc_plan.h instead, for cc -I.")
def schema(include: bool) -> None:
    """The JSON Schema (draft 2020-12) of the plans that optcc writes."""
    text = f"{files('optcc') / 'include'}\n" if include else plan_schema()
    with to_stdout():
        click.echo(text, nl=False)


def plan_schema() -> str:
    """The text of the JSON Schema of plan files."""
    return (files("optcc") / "schema" / "plan-1.schema.json").read_text(encoding="utf-8")
