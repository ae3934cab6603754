"""`optcc schema`: the JSON Schemas of plan files and diagnoses, and where the reader in C is."""

from __future__ import annotations

from importlib.resources import files

import click

from optcc.errors import InputError
from optcc.files.writing import to_stdout


@click.command()
@click.argument("what", type=click.Choice(["plan", "diagnosis"]), default="plan")
@click.option("--include", is_flag=True, help="Print the folder of optcc_plan.h instead, for cc -I.")
def schema(what: str, include: bool) -> None:
    """The JSON Schema (draft 2020-12) of the plans that optcc writes, or of what optcc diagnose --json prints."""
    if include and what != "plan":
        raise InputError("for plans only", where="--include", expected="optcc schema --include", got=what)
    text = f"{files('optcc') / 'include'}\n" if include else _text(f"{what}-1.schema.json")
    with to_stdout():
        click.echo(text, nl=False)


def plan_schema() -> str:
    """The text of the JSON Schema of plan files."""
    return _text("plan-1.schema.json")


def diagnosis_schema() -> str:
    """The text of the JSON Schema of what `optcc diagnose --json` prints."""
    return _text("diagnosis-1.schema.json")


def _text(name: str) -> str:
    return (files("optcc") / "schema" / name).read_text(encoding="utf-8")
