"""Every message about bad input can be read, and good input in the same shapes passes. The table: bad_inputs.py."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from optcc.cli import main
from tests.bad_inputs import BAD_INPUTS, GOOD_INPUTS, BadInput


def call(case: BadInput, directory: Path) -> Result:
    for name, content in case.files.items():
        (directory / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    return CliRunner().invoke(main, [arg.replace("{dir}", str(directory)) for arg in case.args])


@pytest.mark.parametrize("case", BAD_INPUTS, ids=lambda case: case.id)
@pytest.mark.timeout(90)  # the first to run the simulator compiles it, 10 s on a quiet machine
def test_bad_input_is_told(case: BadInput, tmp_path: Path) -> None:
    """Status 2, nothing on stdout, and on stderr a message that names what is wrong and can be read."""
    result = call(case, tmp_path)
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)
    for fragment in case.fragments:
        assert fragment.replace("{dir}", str(tmp_path)) in result.stderr
    message = result.stderr.splitlines()[-1]
    assert message.startswith(("optcc: ", "Error: "))
    assert message.isprintable()
    assert len(message.replace(str(tmp_path), "")) < 600


def test_ids_are_unique() -> None:
    ids = [case.id for case in BAD_INPUTS]
    assert len(ids) == len(set(ids)) >= 30


@pytest.mark.parametrize("case", GOOD_INPUTS, ids=lambda case: case.id)
def test_good_input_passes(case: BadInput, tmp_path: Path) -> None:
    """The table's shapes are not refused as such."""
    result = call(case, tmp_path)
    assert result.exit_code == 0, result.stderr
    assert result.stdout
