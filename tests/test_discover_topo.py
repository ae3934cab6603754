"""`optcc topo`: what was read, what was assumed, and how to correct it."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner

from optcc.cli import main
from optcc.discover import load_topology
from tests.test_discover_dialects import BARE
from tests.topology_texts import HOPPER


def test_topo_tells_what_was_read_and_assumed_and_how_to_correct_it(tmp_path: Path) -> None:
    matrix_file, written = tmp_path / "topo.txt", tmp_path / "t.yaml"
    matrix_file.write_text(HOPPER)
    arguments = ["topo", str(matrix_file), "--nic-rate", "400Gb/s", "--servers", "2", "-o", str(written)]
    text = CliRunner().invoke(main, arguments)
    assert text.exit_code == 0, text.output
    for part in ("read\n", "assumed\n", "mlx5_bond_0: skipped", "to correct it: list it in --nics"):
        assert part in text.stdout
    value = json.loads(CliRunner().invoke(main, [*arguments, "--json"]).stdout)
    assert [len(server["nics"]) for server in value["servers"]] == [8, 8]
    assert all(a["to_correct"] for a in value["assumed"])
    assert "nvidia-smi topo -m" in value["read"][0]
    again = load_topology(str(written))
    first = load_topology(str(matrix_file), nic_rate="400Gb/s", servers=2)
    assert again.cluster == first.cluster
    assert again.notes == (), "what is written down is no longer assumed"


def test_every_assumption_that_something_can_be_done_about_says_what(tmp_path: Path) -> None:
    bare = tmp_path / "t.xml"
    bare.write_text(f"<system>{BARE}</system>")
    for note in load_topology(str(bare), nic_rate="100Gb/s").assumed:
        assert note.fix, note.what
