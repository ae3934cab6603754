"""`optcc run` over verbs as people type it, with a NIC whose link goes down on the way."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.verbs.conftest import VIRTUAL_TIME, command_environment, needs_package

pytestmark = [pytest.mark.rdma, needs_package("click")]
RATE = 1e9
OPTIONS = ("--size", "2MiB", "--repeat", "1", "--transport", "verbs")


def topology(network: ModuleType, folder: Path, fabric: dict[str, Any] | None = None) -> Path:
    """Four servers with two NICs each, at 1 Gb/s, called as the lab's, in two pods where the fabric has any."""
    servers = [
        {"name": f"server{s}", "gpus": 2, "nics": [{"name": f"rxe{2 * s + n}", "rate": "1Gb/s"} for n in range(2)]}
        | ({"pod": f"pod{s // 2}"} if fabric else {})
        for s in range(4)
    ]
    file = folder / "topology.yaml"
    told = f"fabric: {json.dumps(fabric)}\n" if fabric else ""
    file.write_text(f"optcc: 1\n{told}servers: {json.dumps(servers)}\n")
    for nic in range(8):
        network.rate(nic, RATE)
    return file


def optcc_run(
    network: ModuleType, folder: Path, *arguments: str, fabric: dict[str, Any] | None = None
) -> subprocess.CompletedProcess[str]:
    """Over all of the lab's NICs that `topology` has."""
    return subprocess.run(
        [sys.executable, "-m", "optcc", "run", str(topology(network, folder, fabric)), *OPTIONS, *arguments],
        env=command_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_timeline_tells_what_became_of_a_cut(network: ModuleType, tmp_path: Path) -> None:
    """Of one that met a chunk under way: between two chunks there is nothing to be moved."""
    for at in ("0.4", "0.5", "0.6", "0.3"):
        network.whole()
        done = optcc_run(network, tmp_path, "--cut", f"server1/rxe2@{at}")
        assert done.returncode == 0, done.stderr
        lines = [line.split() for line in done.stdout.splitlines()]
        told = [what for line in lines for what in line if what in ("struck", "lost", "moved", "done")]
        if "moved" in told:
            break
    assert [what for i, what in enumerate(told) if what not in told[:i]] == ["struck", "lost", "moved", "done"]
    assert "server1/rxe2: cut at" in done.stdout
    assert re.search("by (port event|completion error)", done.stdout), "whichever the NIC tells first"
    # On a busy machine others show less than their rates, too; in virtual time none does.
    before = "" if VIRTUAL_TIME else "(.*, )?"
    assert re.search(f"found by probes: {before}server1/rxe2 lost", done.stdout)
    assert done.stdout.count("exact") == 4, "in the timeline; before, during and after"


def test_a_cut_that_hits_nothing_is_exit_status_3_and_json_tells_which(network: ModuleType, tmp_path: Path) -> None:
    """One of the two strikes when all of its server's transfers are done."""
    done = optcc_run(network, tmp_path, "--cut", "server1/rxe2@0.4", "--cut", "server3/rxe6@1", "--json")
    assert done.returncode == 3, done.stderr
    assert "inconclusive" in done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["exact"]
    assert not told["conclusive"]
    hit, missed = told["failovers"]
    assert (hit["nic"], hit["kind"]) == ("server1/rxe2", "cut")
    assert hit["cause"] in ("port event", "completion error")
    assert 0 <= hit["detected_s"] <= hit["resumed_s"]
    assert not VIRTUAL_TIME or hit["resumed_s"] < 0.03
    assert hit["hit"], "whether a chunk was under way then or not"
    assert (missed["nic"], missed["hit"], missed["replayed_bytes"]) == ("server3/rxe6", False, 0)
    assert told["nics_left"]["server1/rxe2"] == 0


@pytest.mark.parametrize("cut", [(), ("--cut", "server1/rxe2@0.4")], ids=["whole", "with a cut"])
def test_plans_for_pods_run_where_the_fabric_is_real(network: ModuleType, tmp_path: Path, cut: tuple[str, ...]) -> None:
    """Here no uplink limits anything."""
    done = optcc_run(network, tmp_path, *cut, "--json", fabric={"pod_oversubscription": "2"})
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["exact"]
