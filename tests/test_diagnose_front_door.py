"""Evidence as it is pasted and logged: what stands around it changes nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from optcc.diagnose.evidence import Evidence
from optcc.diagnose.readers import gather
from optcc.discover.pasted import cleaned, json_values
from optcc.errors import InputError
from tests import diagnosis_texts as texts
from tests.diagnosis_texts import PORTS
from tests.test_discover_texts import before

TIME = "2026-11-20T10:00:00.123456789Z "
DATE = "Fri Nov 20 10:00:00 2026"


def boxed(key: str) -> Callable[[str], str]:
    return lambda text: "".join(json.dumps({key: f"{line}\n", "stream": "stdout"}) + "\n" for line in text.splitlines())


WRAPS: dict[str, Callable[[str], str]] = {
    "mpirun --tag-output": before("[1,0]<stdout>:"),
    "mpirun --tag-output --timestamp-output": before(f"{DATE}[1,0]<stdout>:"),
    "mpirun --timestamp-output": before(f"{DATE}<stdout>: "),
    "prterun": before("[prterun-node1-4711@1,12]<stdout>: "),
    "srun -l": before("0: "),
    "srun -l, wide": before("  0: "),
    "mpiexec -l": before("[0] "),
    "kubectl logs --prefix": before("[pod/nccl-launcher-x7k2p/main] "),
    "kubectl logs --prefix --timestamps": before("[pod/nccl-launcher-x7k2p/main] " + TIME),
    "containerd": before(TIME + "stdout F "),
    "journalctl": before("Nov 20 10:00:00 node1 job[17]: "),
    "journalctl -o short-iso-precise": before("2026-11-20T10:00:00.123456+0000 node1 job[17]: "),
    "ts": before("Nov 20 10:00:00 "),
    "Go's log": before("2026/11/20 10:00:00 "),
    "seconds": before("[12345.678901] "),
    "Ray": before("(RayTrainWorker pid=123, ip=192.0.2.1) "),
    "torchrun --tee": before("[default0]:"),
    "torch": before("[rank0]: "),
    "pdsh": before("server0: "),
    "compose": before("worker-1  | "),
    "quoted": before("> "),
    "quoted mpirun": before("> [1,0]<stdout>:"),
    "fenced": lambda text: f"It says\n```text\n{text}```\nwhat now?\n",
    "docker": boxed("log"),
    "journalctl -o json": boxed("MESSAGE"),
    "colours": lambda text: "".join(f"\x1b[1;32m{line}\x1b[0m\n" for line in text.splitlines()),
    "Windows": lambda text: text.replace("\n", "\r\n"),
    "byte order mark": lambda text: "\ufeff" + text,
    "slurm's task, time": before("0: 2026-11-20 10:00:00.123 "),
    "Intel MPI": before("[0#123:124@node1] "),
    "MPICH": before("[proxy:0:0@node1] "),
    "torchrun's role": before("[my_role3]:"),
    "stern": before("nccl-launcher-x7k2p main "),
    "journalctl -o short-full": before("Fri 2026-11-20 10:00:00 UTC node1 job[17]: "),
    "journalctl -o short-unix": before("1795000000.123456 node1 job[17]: "),
    "Python's logging": before("2026-11-20 10:00:00,123 - INFO - "),
    "GitLab": before("2026-11-20T10:00:00.123456Z 00O "),
    "GitHub": before("job\tRun tests\t2026-11-20T10:00:00.1234567Z "),
    "SkyPilot": before("(worker1, rank=1, pid=1234, ip=192.0.2.1) "),
    "rank 0:": before("rank 0: "),
    "Outlook": before("| "),
    "cat -n": lambda text: "".join(f"{i:6d}\t{line}\n" for i, line in enumerate(text.splitlines(), 1)),
    "Slack": lambda text: f"Ann 10:02\n```{text}```\n",
    "a web page": lambda text: text.replace("  ", "\xa0 "),
    "Windows twice": lambda text: text.replace("\n", "\r\r\n"),
    "banner": lambda text: f"Last login: Fri Nov 20\nNCCL version 2.28.9+cuda13.0\n{text}\n[root@n01 ~]# \n",
}
TEXTS = {
    "table": texts.table("all_reduce", 40000, log=texts.log()),
    "json": json.dumps(json.loads(texts.json_table(40000)), indent=1) + "\n",
    "log": texts.log(texts.ERROR_12, texts.OLD_ERROR_12, texts.PORT_ERROR, texts.SLOWER),
    "ras": texts.RAS,
    "ras-json": json.dumps(json.loads(texts.RAS_JSON), indent=1) + "\n",
    "inspector": "".join(texts.inspector(rank, {1: 40000, 2: 41000}) for rank in range(4)),
}


def said(found: Evidence) -> list[object]:
    """Without the places, whose lines banners move."""
    seen = [(o.kind, tuple(o.used.items()), o.time_s, o.servers) for o in found.observations]
    return [seen, [(s.what, s.server, s.nic, s.grave) for s in found.signs], len(found.unused)]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("wrap", WRAPS)
def test_what_stands_around_evidence_changes_nothing(name: str, wrap: str, tmp_path: Path) -> None:
    plain, pasted = tmp_path / "plain.txt", tmp_path / "pasted.txt"
    plain.write_text(TEXTS[name])
    pasted.write_bytes(WRAPS[wrap](TEXTS[name]).encode())
    whole = gather([str(plain)], PORTS)
    assert whole.observations or whole.signs
    assert said(gather([str(pasted)], PORTS)) == said(whole)


def test_utf_16_is_read(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    for encoding in ("utf-16", "utf-16-le", "utf-16-be"):
        path.write_bytes(TEXTS["table"].encode(encoding))
        assert len(gather([str(path)], PORTS).observations) == 2


def test_a_prefix_on_some_lines_only(tmp_path: Path) -> None:
    """As where one process of a job prints through srun, and another straight to the file."""
    lines = TEXTS["table"].splitlines()
    path = tmp_path / "x.txt"
    path.write_text("".join(f"{'[1,0]<stdout>:' if i % 3 else ''}{line}\n" for i, line in enumerate(lines)))
    assert len(gather([str(path)], PORTS).observations) == 2


def test_tables_with_different_prefixes_in_one_file(tmp_path: Path) -> None:
    ways = ("mpirun --tag-output", "srun -l", "kubectl logs --prefix", "banner")
    path = tmp_path / "x.txt"
    path.write_text("".join(WRAPS[way](TEXTS["table"]) for way in ways))
    assert len(gather([str(path)], PORTS).observations) == 8


def test_content_that_looks_like_a_prefix_stays() -> None:
    links = "".join(f"link mlx5_{n}/1 state ACTIVE physical_state LINK_UP netdev ens{n}np0 \n" for n in range(8))
    priorities = "".join(f"     rx_prio{n}_bytes: 0\n" for n in range(8))
    metrics = "".join(f'nccl_bytes_total{{rank="{n}"}} {n}\n' for n in range(8)) + "# EOF\n"
    json_lines = '{\n "0": {"a": 1},\n' + "".join(f' "{n}": {{"a": 1}},\n' for n in range(1, 8)) + ' "x": {}\n}\n'
    for text in (links, priorities, metrics, json_lines):
        assert cleaned(text) == text
    counters = "rx_packets: 12\ntx_packets: 13\nrx_errors: 0\n"  # no host speaks once only
    yaml = "optcc: 1\nservers:\n  - name: a\n    gpus: 2\n"
    for text in (counters, yaml, TEXTS["ras"], TEXTS["json"], texts.calibration()):
        assert cleaned(text) == text


def test_json_in_a_text() -> None:
    text = 'banner {\n[root@n01 ~]# cat\n{"a": 1}\n [2, 3]\n{"cut": \n'
    assert json_values(text) == [(3, {"a": 1}), (4, [2, 3])]


def test_several_tests_as_json_in_one_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(TEXTS["json"] + "done\n" + TEXTS["json"].replace("all_reduce_perf", "alltoall_perf"))
    assert [o.kind for o in gather([str(path)], PORTS).observations] == ["all_reduce"] * 2 + ["alltoall"] * 2


def test_json_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(TEXTS["json"][:-20])
    with pytest.raises(InputError, match="not JSON"):
        gather([str(path)], PORTS)
