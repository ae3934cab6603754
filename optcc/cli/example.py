"""`optcc example`: the examples that come with optcc, listed, printed, or written to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from optcc.cli.options import OUTPUT, check_output, emit, json_option, say_written
from optcc.errors import InputError
from optcc.files.bundled import EXAMPLES, PREFIX, example_name, example_path
from optcc.files.writing import write_file


@click.command()
@click.argument("name", required=False)
@click.option("-o", "--output", type=OUTPUT, help="Where to write the example; - is standard output.")
@json_option
def example(name: str | None, output: Path | None, as_json: bool) -> None:
    """The examples that come with optcc; with NAME, the text of one.

    Topologies among them can be given to every command as example:NAME.
    """
    if name is None:
        if output is not None:
            raise InputError("nothing to write", where="-o", expected="the name of an example beside it", got="none")
        listed = [{"name": file, "what": what} for file, what in EXAMPLES.items()]
        emit(as_json, {"examples": listed}, _show_list)
        return
    check_output(output, as_json)
    file = example_name(name, "NAME")
    data = example_path(file, "NAME").read_bytes()
    text = data.decode("utf-8")
    value: dict[str, Any] = {"name": file, "what": EXAMPLES[file], "text": text}
    if output is not None:
        write_file(output, data)
        say_written(output)
    if output is None or as_json:
        emit(as_json, value, lambda: click.echo(text, nl=False))


def _show_list() -> None:
    width = max(map(len, EXAMPLES))
    for file, what in EXAMPLES.items():
        click.echo(f"{file:{width}}  {what}")
    click.echo(f"\noptcc example NAME -o FILE writes one; topologies are also read as {PREFIX}NAME")
