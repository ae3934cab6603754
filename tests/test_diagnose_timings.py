"""Timings of collectives, by nccl-tests and by NCCL's Inspector: which NICs they load, and what is missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from optcc.diagnose.evidence import IN, OUT, port
from optcc.diagnose.loads import KINDS, RankPlace, Use, loads
from optcc.diagnose.readers import gather, read_text
from optcc.discover.nccl_log import wanted_by
from optcc.errors import InputError
from tests import diagnosis_texts as texts
from tests.diagnosis_texts import FUSED, PORTS

GIB = 1 << 30
US = 1e-6


def whole(part: float) -> dict[int, float]:
    """Every port of both servers at `part`."""
    return {number: pytest.approx(part, rel=1e-3) for number in range(8)}


@pytest.mark.parametrize(
    ("kind", "carried"),
    [  # bytes that cross each server's boundary for each byte of 4 ranks on 2 servers, over two NICs
        ("all_reduce", 1.5 / 2),
        ("all_gather", 0.75 / 2),
        ("reduce_scatter", 0.75 / 2),
        ("broadcast", 1 / 2),
        ("reduce", 1 / 2),
        ("alltoall", 2 * 0.5 / 2),
    ],
)
def test_a_row_of_nccl_tests(kind: str, carried: float) -> None:
    found = read_text(texts.table(kind, 40000), "x.txt", PORTS)
    first, second = found.observations
    assert first.kind == kind
    assert first.used == whole(carried * GIB / (40000 * US) / 50e9)
    assert second.time_s == pytest.approx(40400 * US)
    assert (first.where, first.nbytes, first.servers) == ("x.txt:14", GIB, ("server0", "server1"))
    assert found.read == (f"x.txt: {kind}, 4 ranks on 2 servers over 4 NICs, 2 measurements",)


def test_sendrecv_uses_the_nics_beside_the_gpus_at_the_boundary() -> None:
    found = read_text(texts.table("sendrecv", 40000), "x.txt", PORTS)
    # Rank 1 sends to rank 2, and rank 3 to rank 0.
    assert set(found.observations[0].used) == {port(1, OUT), port(2, IN), port(3, OUT), port(0, IN)}


@pytest.mark.parametrize(("kind", "way"), [("gather", IN), ("scatter", OUT)])
def test_gather_and_scatter_use_one_way_of_the_root(kind: str, way: int) -> None:
    found = read_text(texts.table(kind, 40000, root=0), "x.txt", PORTS)
    assert set(found.observations[0].used) == {port(0, way), port(1, way), port(2, 1 - way), port(3, 1 - way)}


def test_the_loads_of_every_kind_balance() -> None:
    members = [RankPlace(f"server{s}", g) for s in range(2) for g in range(2)]
    use = Use.equally({"server0": [0, 1], "server1": [2, 3]})
    for kind in KINDS:
        found = loads(kind, GIB, members, use, PORTS)
        sent, taken = (sum(b for p, b in found.items() if p % 2 == way) for way in (OUT, IN))
        assert sent == pytest.approx(taken), kind
        assert sent > 0


def test_a_job_of_one_server_says_nothing() -> None:
    text = texts.table("all_reduce", 40000).replace("server1", "server0")
    assert "uses no NIC" in read_text(text, "x.txt", PORTS).unused[0]


def test_channels_in_the_log_say_which_nics_carry_how_much() -> None:
    log = texts.log().replace("NET/IB/1/", "NET/IB/0/")
    found = read_text(texts.table("all_reduce", 40000, log=log), "x.txt", PORTS)
    assert set(found.observations[0].used) == {port(n, way) for n in (0, 2) for way in (OUT, IN)}
    assert found.observations[0].used[0] == pytest.approx(1.5 * GIB / (40000 * US) / 50e9)


def test_channels_of_other_communicators_do_not_count() -> None:
    """Ranks 0 and 1 of pairs are other processes than ranks 0 and 1 of the job, and use nic1."""
    lines = []
    for pid, gpu, ranks in ((100, 0, (0, 2)), (101, 1, (1, 3))):
        for h, rank in enumerate(ranks):
            who = f"server{h}:{pid}:200 [{gpu}] NCCL INFO"
            start = f"comm 0x{{}}{rank} rank {{}} nranks {{}} cudaDev {gpu} nvmlDev {gpu} busId 1b000 - Init START"
            lines.append(f"{who} {start.format(1, rank, 4)}")
            lines += [f"{who} Channel 00/0 : {rank}[{gpu}] -> {9}[0] [send] via NET/IB/0/GDRDMA"]
            lines += [f"{who} Channel 00/0 : {9}[0] -> {rank}[{gpu}] [receive] via NET/IB/0/GDRDMA"]
            lines.append(f"{who} {start.format(2, h, 2)}")
            lines += [f"{who} Channel 00/0 : {h}[{gpu}] -> {1 - h}[0] [send] via NET/IB/1/GDRDMA"] * 4
            lines += [f"{who} Channel 00/0 : {1 - h}[0] -> {h}[{gpu}] [receive] via NET/IB/1/GDRDMA"] * 4
    using = [line for line in texts.log().splitlines() if "Using" in line]
    found = read_text(texts.table("all_reduce", 40000, log="\n".join([*using, *lines]) + "\n"), "x.txt", PORTS)
    assert {number // 2 for number in found.observations[0].used} == {0, 2}


@pytest.mark.parametrize(
    ("hca", "names"),
    [("nic1", [1, 10]), ("=nic1", [1]), ("^nic1", [0]), ("^=nic1", [0, 10]), ("=nic0:1,nic10", [0, 10])],
)
def test_nccl_ib_hca(hca: str, names: list[int]) -> None:
    assert list(wanted_by(hca, {0: "nic0", 1: "nic1", 10: "nic10"})) == names


def test_nccl_ib_hca_in_the_log_and_on_the_command_line() -> None:
    said = texts.table("all_reduce", 40000, log="server0:1:2 [0] NCCL INFO NCCL_IB_HCA set to =nic1\n")
    asked = "$ mpirun -x NCCL_IB_HCA==nic1 all_reduce_perf\n" + texts.table("all_reduce", 40000)
    for text in (said, asked):
        found = read_text(text, "x.txt", PORTS)
        assert {p // 2 for p in found.observations[0].used} == {1, 3}


def test_several_tests_in_one_file() -> None:
    both = texts.table("all_reduce", 40000) + texts.table("alltoall", 50000)
    assert [o.kind for o in read_text(both, "x.txt", PORTS).observations] == ["all_reduce"] * 2 + ["alltoall"] * 2


def test_a_collective_that_is_not_named() -> None:
    text = texts.table("all_reduce", 40000).replace("# Collective test starting: all_reduce_perf\n", "")
    nameless = read_text(text, "x.txt", PORTS)
    assert not nameless.observations
    assert "does not say its collective" in nameless.unused[0]
    assert read_text(text, "all_gather-1.txt", PORTS).observations[0].kind == "all_gather"
    busbw = text.replace(f"{GIB / 40000 / 1e3:7.2f} {GIB / 40000 / 1e3:7.2f}", f"{26.84:7.2f} {40.26:7.2f}")
    assert read_text(busbw.replace("    1.00    1.00      0", ""), "x.txt", PORTS).observations[0].kind == "all_reduce"


def test_old_tables_without_redop() -> None:
    text = texts.table("all_gather", 40000).replace("   redop", "").replace("     sum", "")
    text = text.replace("    root ", "").replace("      -1 ", " ")
    assert read_text(text, "x.txt", PORTS).observations[0].time_s == pytest.approx(40000 * US)


def test_small_sizes_and_wrong_results() -> None:
    small = read_text(texts.table("all_reduce", 100, nbytes=1 << 20), "x.txt", PORTS)
    assert not small.observations
    assert "measure with -b 256M" in small.unused[0]
    (sign,) = read_text(texts.table("all_reduce", 40000, wrong=3), "x.txt", PORTS).signs
    assert (sign.what, sign.grave) == ("all_reduce gave 3 wrong results", True)


def test_json_of_nccl_tests() -> None:
    found = read_text(texts.json_table(40000), "x.json", PORTS)
    assert [o.kind for o in found.observations] == ["all_reduce"] * 2
    assert found.observations[0].used == whole(0.75 * GIB / (40000 * US) / 50e9)


def test_a_host_that_the_topology_does_not_have() -> None:
    text = texts.table("all_reduce", 40000).replace("server1", "elsewhere")
    with pytest.raises(InputError, match=r"x.txt:1: a host that the topology does not have, .*'elsewhere'.*--hosts"):
        read_text(text, "x.txt", PORTS)
    qualified = texts.table("all_reduce", 40000).replace("server1", "server1.example.net")
    assert read_text(qualified, "x.txt", PORTS).observations[0].servers == ("server0", "server1")


def test_channels_over_a_fused_nic_load_its_ports() -> None:
    """Where the topology has the ports apart, and where it has them as one."""
    made = "server{}:100:200 [0] NCCL INFO NET/IB : Made virtual device [{}] name=nic0+nic1 speed=800000 ndevs=2"
    fused = [made.format(server, number) for server in range(2) for number in range(2)]
    text = texts.table("all_reduce", 40000, log=texts.log(*fused))
    apart = read_text(text, "x", PORTS).observations[0]
    assert len(set(map(round, (1e6 * part for part in apart.used.values())))) == 1
    assert len(apart.used) == 8
    assert read_text(text, "x", FUSED).observations[0].used.keys() == {
        port(0, OUT),
        port(0, IN),
        port(2, OUT),
        port(2, IN),
    }


def test_a_test_that_failed() -> None:
    rows = "server0: Test timeout (300s) common.cu:523\n"
    text = texts.TABLE.format(kind="sendrecv", log="", rows=rows)
    (seen,) = read_text(text, "x.txt", PORTS).observations
    assert seen.failed
    silent = read_text(texts.TABLE.format(kind="sendrecv", log="", rows=""), "x.txt", PORTS)
    assert "without an error" in silent.unused[0]


def test_inspector_takes_the_rank_that_came_last(tmp_path: Path) -> None:
    for rank in range(4):
        times = {1: 40000 + 1000 * rank, 2: 50000 - 1000 * rank}
        (tmp_path / f"{rank}.log").write_text(texts.inspector(rank, times))
    sources = [str(tmp_path / f"{rank}.log") for rank in range(4)]
    found = gather(sources, PORTS)
    assert [o.time_s for o in found.observations] == [pytest.approx(40000 * US), pytest.approx(47000 * US)]
    assert found.observations[0].used == whole(0.75 * GIB / (40000 * US) / 50e9)
    some = gather(sources[:2], PORTS)
    assert not some.observations
    assert "records of 1 of its 2 servers" in some.unused[0]


def test_inspector_without_gpus_is_not_placed(tmp_path: Path) -> None:
    for rank in range(2):
        (tmp_path / f"{rank}.log").write_text(texts.inspector(rank, {1: 40000}, ranks=2))
    found = gather([str(tmp_path / f"{rank}.log") for rank in range(2)], PORTS)
    assert "which GPU is whose" in found.unused[0]
