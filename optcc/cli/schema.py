"""`optcc schema`: the JSON Schema of diagnoses, and where the reader in C is."""

from __future__ import annotations

from importlib.resources import files

import click

from optcc.files.writing import to_stdout


@click.command()
@click.argument("what", type=click.Choice(["diagnosis"]), default="diagnosis")
@click.option("--include", is_flag=True, help="Print the folder of optcc_plan.h instead, for cc -I.")
def schema(what: str, include: bool) -> None:
    """The JSON Schema (draft 2020-12) of what optcc diagnose --json prints."""
    text = f"{files('optcc') / 'include'}\n" if include else diagnosis_schema()
    with to_stdout():
        click.echo(text, nl=False)


def diagnosis_schema() -> str:
    """The text of the JSON Schema of what `optcc diagnose --json` prints."""
    return (files("optcc") / "schema" / "diagnosis-1.schema.json").read_text(encoding="utf-8")
