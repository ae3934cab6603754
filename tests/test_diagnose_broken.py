"""Broken evidence is read as far as it goes, or refused with a message."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from optcc.diagnose.evidence import Evidence, NicDirections
from optcc.diagnose.readers import READERS, gather, read_text
from optcc.diagnose.verdict import judge
from optcc.discover.nccl_log import parse_log
from optcc.errors import InputError
from tests import diagnosis_texts as texts
from tests import host_texts, tool_texts
from tests.diagnosis_texts import PORTS, RATES
from tests.effort import cases
from tests.mutations import mutated

SAMPLES = {
    "table": texts.table("all_reduce", 40000, log=texts.log(texts.ERROR_12)),
    "json": texts.json_table(40000),
    "log": texts.log(texts.ERROR_12, texts.OLD_ERROR_12, texts.PORT_ERROR, texts.SLOWER),
    "ras": texts.RAS,
    "ras-json": texts.RAS_JSON,
    "calibration": texts.calibration(0.5),
}
NICS = {"nic0": 400, "nic1": 200}
OF_TOOLS = {
    "server1.ibstat": host_texts.ibstat(NICS),
    "server1.ibstatus": tool_texts.ibstatus(NICS),
    "server1.rdma": tool_texts.rdma_link([*NICS], ["nic1"]),
    "server1.devinfo": tool_texts.devinfo(NICS),
    "fabric": tool_texts.fabric(["server0", "server1"], NICS),
    "server1.mlxlink": tool_texts.mlxlink("IB-EDR", command="# mlxlink -d nic1"),
    "server1.perfquery": tool_texts.perfquery(PortRcvErrors=3).replace("# Port", "# perfquery -C nic1\n# Port"),
    "server1.ethtool": tool_texts.ethtool_s("$ ethtool -S nic0", link_down_events_phy=3),
    "metrics": "".join(tool_texts.metrics(f"server{s}", g, 40.0) for s in range(2) for g in range(2)),
    "server0.mooncake": tool_texts.mooncake("192.0.2.1", "nic0", "192.0.2.2", "nic1"),
}


def survives(read: Callable[[], Evidence]) -> None:
    """Evidence that can be judged, or a message."""
    try:
        found = read()
    except InputError as error:
        message = str(error)
    else:
        message = ""
    assert len(message) < 2000
    if message:
        return
    assert all(len(line) < 2000 for line in (*found.read, *found.unused))
    for seen in found.observations:
        assert all(0 <= number < 8 and 0 < part < 1e30 for number, part in seen.used.items())
    judge(found, PORTS)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.cases
def test_broken_files_are_read_or_refused(name: str) -> None:
    for seed in range(cases(1700)):
        text = mutated(SAMPLES[name], random.Random(seed))
        survives(lambda text=text: read_text(text, "x", PORTS))  # type: ignore[misc]


@pytest.mark.parametrize("name", OF_TOOLS)
@pytest.mark.cases
def test_broken_output_of_tools_is_read_or_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / f"{name}.txt"
    path.write_text(OF_TOOLS[name])
    whole = gather([str(path)], PORTS)
    assert whole.observations or whole.signs or name == "server0.mooncake", "it is read while it is whole"
    for seed in range(cases(400)):
        path.write_text(mutated(OF_TOOLS[name], random.Random(seed)))
        survives(lambda: gather([str(path)], PORTS))


@pytest.mark.cases
def test_broken_inspector_files_are_read_or_refused(tmp_path: Path) -> None:
    whole = "".join(texts.inspector(rank, {1: 40000, 2: 41000}) for rank in range(4))
    path = tmp_path / "x.log"
    for seed in range(cases(1000)):
        path.write_text(mutated(whole, random.Random(seed)))
        survives(lambda: gather([str(path)], PORTS))


@pytest.mark.cases
def test_broken_sysfs_is_read_or_refused(tmp_path: Path) -> None:
    tree = texts.sysfs(tmp_path / "s", RATES, counters={"nic0": {"port_xmit_data": 1000, "link_downed": 3}})
    files = sorted(path for path in tree.rglob("*") if path.is_file() and not path.is_symlink())
    for seed in range(cases(500)):
        rng = random.Random(seed)
        path = rng.choice(files)
        was = path.read_bytes()
        path.write_bytes(mutated(was.decode(), rng).encode())
        survives(lambda: gather([f"server0={tree}"], PORTS))
        path.write_bytes(was)


def test_the_mutations_can_find_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    def fragile(text: str, source: str, ports: NicDirections) -> Evidence:
        return Evidence(read=(text.splitlines()[40],))

    monkeypatch.setattr("optcc.diagnose.readers.READERS", [READERS[0].__class__("x", lambda text: True, fragile)])
    with pytest.raises(IndexError):
        test_broken_files_are_read_or_refused("ras")


def test_every_sample_is_read_whole() -> None:
    for name, text in SAMPLES.items():
        found = read_text(text, name, PORTS)
        assert found.observations or found.signs, name
    assert parse_log(SAMPLES["log"]).failures
