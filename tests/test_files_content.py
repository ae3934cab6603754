"""Files of other libraries are told by their content, whatever stands before it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

import optcc
from optcc.cli import main
from optcc.export.reread import reader_of
from optcc.files.content import from_content

LICENCE = "<!-- Copyright: nobody.\n" + "     All rights are reserved, at length.\n" * 200 + "-->\n"
BEFORE: dict[str, Callable[[str, str], str]] = {
    "nothing": lambda text, kind: text,
    "a banner": lambda text, kind: f"NCCL version 2.28.9+cuda13.0\nhello, world\n{text}",
    "a byte order mark": lambda text, kind: "\ufeff" + text,
    "empty lines": lambda text, kind: f"\n\n{text}",
    "a long licence": lambda text, kind: LICENCE + text if kind == "msccl" else text,
    "a declaration": lambda text, kind: f'<?xml version="1.0" encoding="UTF-8"?>\n{text}' if kind == "msccl" else text,
    "all of them": lambda text, kind: f'\ufeffhi\n<?xml version="1.0"?>\n{LICENCE}{text}' if kind == "msccl" else text,
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("plan")
    plan = optcc.plan(optcc.Cluster.uniform(servers=3, nics=2, rate=10**9).degrade("server0/nic1"), 1 << 20)
    (folder / "plan.json").write_text(plan.to_json())
    made = {}
    for kind in ("msccl", "mscclpp", "goal"):
        path = folder / kind
        done = CliRunner().invoke(main, ["export", str(folder / "plan.json"), "--format", kind, "-o", str(path)])
        assert done.exit_code == 0, done.output
        made[kind] = path.read_text()
    return made


@pytest.mark.parametrize("kind", ["msccl", "mscclpp", "goal"])
@pytest.mark.parametrize("before", BEFORE)
def test_what_stands_before_the_content_changes_nothing(
    kind: str, before: str, exported: dict[str, str], tmp_path: Path
) -> None:
    plain, path = tmp_path / "plain", tmp_path / "file"
    plain.write_text(exported[kind])
    path.write_bytes(BEFORE[before](exported[kind], kind).encode())
    read, reference = reader_of(path), reader_of(plain)
    assert read is not None
    assert reference is not None
    assert read(path) == reference(plain)


def test_lines_keep_their_numbers() -> None:
    text = 'hi\n<?xml version="1.0"?>\n<!-- a\nb --> <algo\n name="x"/>'
    assert from_content(text, r"<algo\b") == '\n\n\n<algo\n name="x"/>'
    assert from_content("nothing\nof it", r"<algo\b") == "nothing\nof it"
