"""Topologies from operators' tools: lists of ports, one port that shows as two functions, links that trained slowly,
NCCL's log of a job with several communicators."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from optcc.discover import Topology, load_topology
from optcc.errors import InputError
from tests import host_texts, tool_texts
from tests.sysfs_machines import ACTIVE, DOWN, Machine, write
from tests.test_discover import GBPS

EIGHT = {f"mlx5_{i}": 400 for i in range(8)}


def read(tmp_path: Path, nic_rate: str | None = None, nics: str | None = None, **files: str) -> Topology:
    sources = []
    for name, text in files.items():
        (tmp_path / f"{name}.txt").write_text(text)
        sources.append(f"{name.partition('__')[0]}={tmp_path / name}.txt")
    return load_topology(sources, nic_rate=nic_rate, nics=nics)


def rates(found: Topology) -> dict[str, dict[str, float]]:
    return {s.name: {n.name: float(n.out_rate / GBPS) for n in s.nics} for s in found.cluster.servers}


SIX = {name: rate for name, rate in EIGHT.items() if name not in ("mlx5_1", "mlx5_3")}


@pytest.mark.parametrize(
    ("text", "rated"),
    [
        (tool_texts.ibstatus({**EIGHT, "mlx5_5": 100}, ["mlx5_1", "mlx5_3"]), True),
        (tool_texts.ibstatus({**EIGHT, "mlx5_5": 100}, ["mlx5_1", "mlx5_3"]).replace("\n", "\r\n"), True),
        (tool_texts.devinfo({**EIGHT, "mlx5_5": 100}, ["mlx5_1", "mlx5_3"]), True),
        (tool_texts.devinfo(EIGHT, ["mlx5_1", "mlx5_3"], verbose=False), False),
        (tool_texts.rdma_link([*EIGHT], ["mlx5_1", "mlx5_3"]), False),
        (tool_texts.rdma_link([*EIGHT], ["mlx5_1", "mlx5_3"], old=True), False),
        (host_texts.rdma_link([*EIGHT], ["mlx5_1", "mlx5_3"]), False),
        ("$ rdma link -j\n" + host_texts.rdma_link([*EIGHT], ["mlx5_1", "mlx5_3"]) + "\n$ \n", False),
    ],
    ids=[
        "ibstatus",
        "ibstatus on Windows",
        "ibv_devinfo -v",
        "ibv_devinfo",
        "rdma link",
        "rdma link, old",
        "rdma link -j",
        "with its command",
    ],
)
def test_lists_of_ports(text: str, rated: bool, tmp_path: Path) -> None:
    if not rated:
        with pytest.raises(InputError, match="--nic-rate"):
            read(tmp_path, a=text)
    found = read(tmp_path, None if rated else "400Gb/s", a=text)
    assert rates(found) == {"a": {**SIX, "mlx5_5": 100} if rated else SIX}
    assert ("mlx5_5: slow: it counts, at 100Gb/s, where 400Gb/s is usual" in "".join(found.notes)) == rated


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("n{}: ", ["n0", "n1", "n2"]),
        ("  {}: ", ["0", "1", "2"]),
        ("[1,{}]<stdout>:", ["rank0", "rank1", "rank2"]),
        ("[pod/w-{}/main] ", ["w-0", "w-1", "w-2"]),
    ],
)
def test_lists_of_several_hosts_in_one_text(prefix: str, names: list[str], tmp_path: Path) -> None:
    text = tool_texts.ibstatus(EIGHT)
    lines = [prefix.format(host) + line for line in text.splitlines() for host in range(3)]
    (tmp_path / "all.txt").write_text("\n".join(lines) + "\n")
    assert rates(load_topology(str(tmp_path / "all.txt"))) == dict.fromkeys(names, EIGHT)


@pytest.mark.parametrize("one_line", [False, True])
def test_a_fabric_has_all_its_hosts(one_line: bool, tmp_path: Path) -> None:
    path = tmp_path / "fabric.txt"
    hosts = ["n1", "n2", "n3"]
    path.write_text(tool_texts.fabric(hosts, EIGHT, {"n2 mlx5_3": 0, "n3 mlx5_0": 10}, one_line))
    found = rates(load_topology(str(path)))
    assert found["n1"] == EIGHT
    assert found["n2"] == {name: rate for name, rate in EIGHT.items() if name != "mlx5_3"}
    assert found["n3"] == {**EIGHT, "mlx5_0": 10}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (tool_texts.perfquery(), "perfquery's counters, which tells no topology.*ibstat"),
        (tool_texts.ethtool_s(), "ethtool -S's counters.*ibstat"),
        (tool_texts.metrics("n1", 0, 9.0), "NCCL Inspector's output.*optcc diagnose"),
        ("#  Rank  0 Pid  1 on  n1 device  0 [0x10] A100\n", "nccl-tests' output.*NCCL_TOPO_DUMP_FILE"),
        ("n1:1:2 [0] NCCL INFO Bootstrap : Using eth0:192.0.2.1<0>\n", "NCCL's log without its NICs.*INIT,NET"),
        ("0000:1a:00.0 Infiniband controller: Mellanox MT2910\n", "lspci's list.*ibstat"),
        ("GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n", "NVIDIA's list of GPUs.*topo -m"),
    ],
)
def test_other_tools_are_named_with_the_way_out(text: str, says: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"(?s){says}"):
        read(tmp_path, a=text)


# One port that shows as two functions

SPARK = [f"roce{pci}p1s0f{f}" for pci in ("P2", "") for f in (0, 1)]
SPARK_GUIDS = {name: (0x1000, 0x1000 + 4 * ("P2" in name) + int(name[-1])) for name in SPARK}


def spark(down: list[str], names: dict[str, str] | None = None) -> str:
    named = names or {name: name for name in SPARK}
    guids = {named[name]: guid for name, guid in SPARK_GUIDS.items()}
    return host_texts.ibstat(dict.fromkeys(named.values(), 200), [named[n] for n in down], link="Ethernet", guids=guids)


@pytest.mark.parametrize(
    ("down", "ports"),
    [
        ([name for name in SPARK if name.endswith("f1")], {"rocep1s0f0": 200}),
        ([], {"rocep1s0f0": 200, "rocep1s0f1": 200}),
        (["rocep1s0f0"], {"roceP2p1s0f0": 200, "rocep1s0f1": 200}),
    ],
)
def test_one_port_that_shows_as_two_functions(down: list[str], ports: dict[str, int], tmp_path: Path) -> None:
    found = read(tmp_path, a=spark(down))
    assert rates(found) == {"a": ports}
    assert "one port of 200Gb/s that shows as 2 functions" in "".join(found.notes)
    assert rates(read(tmp_path, nics="rocep1s0f0,roceP2p1s0f0", a=spark([]))) == {
        "a": {"roceP2p1s0f0": 200, "rocep1s0f0": 200}
    }, "those that are asked for all count"


LINKS = "".join(f"link {name}/1 state ACTIVE physical_state LINK_UP netdev en{name[4:]}\n" for name in SPARK)
DEVICES = [(name, f"fc4c:0003:0000:000{4 * ('P2' in name) + int(name[-1])}", "fc4c:0003:0000:0000") for name in SPARK]
DEV = "".join(
    f"{i}: {name}: node_type ca fw 28.45.4028 node_guid {node} sys_image_guid {image} \n"
    for i, (name, node, image) in enumerate(DEVICES)
)
DEV_JSON = json.dumps([{"ifname": name, "node_guid": node, "sys_image_guid": image} for name, node, image in DEVICES])


@pytest.mark.parametrize("dev", [DEV, DEV_JSON])
def test_rdma_dev_tells_which_links_are_one_port(dev: str, tmp_path: Path) -> None:
    both = {"rocep1s0f0": 200, "rocep1s0f1": 200}
    for texts in ({"a": LINKS, "a__2": dev}, {"a": dev, "a__2": LINKS}, {"a": LINKS + dev}):
        assert rates(read(tmp_path, nic_rate="200Gb/s", **texts)) == {"a": both}


def test_links_by_names_alone_tell_a_card_that_shows_each_port_twice(tmp_path: Path) -> None:
    """As on DGX Spark; names of more cards, or of other forms, join nothing."""
    found = read(tmp_path, nic_rate="200Gb/s", a=LINKS)
    assert rates(found) == {"a": {"rocep1s0f0": 200, "rocep1s0f1": 200}}
    assert "by their names two functions of each port" in "".join(found.notes)
    one_cable = LINKS.replace("f1/1 state ACTIVE physical_state LINK_UP", "f1/1 state DOWN physical_state DISABLED")
    assert rates(read(tmp_path, nic_rate="200Gb/s", b=one_cable)) == {"b": {"rocep1s0f0": 200}}
    for others in (LINKS.replace("P2", "P3") + LINKS, LINKS.replace("f1/1 state ACTIVE", "f1/1 state DOWN", 1)):
        kept = "".join(dict.fromkeys(line + "\n" for line in others.splitlines()))
        assert len(rates(read(tmp_path, nic_rate="200Gb/s", c=kept))["c"]) == kept.count("ACTIVE")


@pytest.mark.parametrize("physical", [("mlx5_0",), ("mlx5_0", "mlx5_4"), ()])
def test_virtual_functions_count_where_their_card_does_not(physical: tuple[str, ...], tmp_path: Path) -> None:
    """Two cards, each with its own device and three virtual functions, whose GUIDs are made up."""
    here = {n: f"mlx5_{n}" for n in range(8) if n % 4 or f"mlx5_{n}" in physical}
    images = {n: 0x100 * (n // 4 + 1) for n in here}
    guids = {name: (images[n], 0xBAD00 + n if n % 4 else images[n]) for n, name in here.items()}
    models = {name: "MT4126" if n % 4 else "MT4129" for n, name in here.items()}
    text = host_texts.ibstat(dict.fromkeys(here.values(), 400), models=models, guids=guids)
    kept = [name for n, name in here.items() if name in physical or f"mlx5_{n // 4 * 4}" not in physical]
    assert list(rates(read(tmp_path, a=text))["a"]) == kept
    assert list(rates(read(tmp_path, nics="mlx5_1,mlx5_5", a=text))["a"]) == ["mlx5_1", "mlx5_5"]


def test_functions_by_other_names_are_told_by_their_guids(tmp_path: Path) -> None:
    names = dict(zip(sorted(SPARK, key=str.lower), ("mlx5_0", "mlx5_1", "mlx5_2", "mlx5_3"), strict=True))
    assert rates(read(tmp_path, a=spark([], names))) == {"a": {"mlx5_0": 200, "mlx5_1": 200}}


@pytest.mark.parametrize("names", [("mlx5_0", "mlx5_1"), ("rocep65s0f0", "rocep65s0f1")])
def test_two_ports_of_a_card_are_two(names: tuple[str, str], tmp_path: Path) -> None:
    guids = {names[0]: (0x70, 0x70), names[1]: (0x70, 0x71)}
    assert rates(read(tmp_path, a=host_texts.ibstat(dict.fromkeys(names, 200), guids=guids)))["a"] == {
        names[0]: 200,
        names[1]: 200,
    }


def test_guids_that_tell_nothing_join_nothing(tmp_path: Path) -> None:
    guids = dict.fromkeys(EIGHT, (0, 0))
    assert rates(read(tmp_path, a=host_texts.ibstat(EIGHT, guids=guids))) == {"a": EIGHT}
    same = dict.fromkeys(("mlx5_0", "mlx5_1"), (0, 0))
    assert len(rates(read(tmp_path, b=host_texts.ibstat(dict.fromkeys(same, 100), guids=same)))["b"]) == 2


@pytest.mark.parametrize("told", ["phys_port_id", "phys_port_name", "guid"])
@pytest.mark.parametrize(("second", "ports"), [(DOWN, {"mlx5_0": 200}), (ACTIVE, {"mlx5_0": 126, "mlx5_1": 126})])
def test_two_functions_in_sysfs(told: str, second: str, ports: dict[str, int], tmp_path: Path) -> None:
    """Two slots of four lanes, 126 Gb/s each: together they carry one port, but not two."""
    made = Machine(tmp_path / "sys")
    for i, (bus, port) in enumerate([(1, 0), (1, 1), (2, 0), (2, 1)]):
        name, state = f"mlx5_{i}", second if port else ACTIVE
        lanes = ("32.0 GT/s PCIe", "4")
        card = made.rdma(bus, name, 200, slot=f"00.{port}", fabric="Ethernet", state=state, now=lanes)
        device = card / "infiniband" / name
        write(device / "ports/1/gids", **{"0": f"fe80::{i + 1}"})
        write(device / "ports/1/gid_attrs/ndevs", **{"0": f"eth{i}"})
        more = {"phys_port_id": {"phys_port_id": f"a0{port}"},
                "phys_port_name": {"phys_port_name": f"p{port}", "phys_switch_id": "a0"}}.get(told, {})  # fmt: skip
        made.net(f"eth{i}", str(card.relative_to(made.root / "devices")), **more)
        if told == "guid":
            node = f"0000:0000:0000:{0x10 + port + 4 * (i // 2):04x}"
            write(device, sys_image_guid="0000:0000:0000:0010", node_guid=node)
    assert made.rates() == ports
    assert "one port of 200Gb/s that shows as 2 functions: mlx5_0 counts, skipped mlx5_2" in made.notes()


def test_two_functions_in_nccl_s_xml(tmp_path: Path) -> None:
    """NCCL writes the system image GUID, and counts functions as ports."""
    nets = "".join(
        f'<pci busid="000{2 * domain}:01:00.{f}" class="0x020000"><nic><net name="{name}" dev="{2 * domain + f}" '
        f'speed="200000" port="{f + 1}" guid="0x1000" gdr="0"/></nic></pci>'
        for domain in (0, 1)
        for f, name in enumerate(SPARK[2 - 2 * domain : 4 - 2 * domain])
    )
    path = tmp_path / "t.xml"
    path.write_text(f'<system version="1"><cpu numaid="0">{nets}</cpu></system>')
    assert rates(load_topology(str(path))) == {"server0": {"rocep1s0f0": 200, "rocep1s0f1": 200}}


# Links that trained slowly

FOUR = {f"mlx5_{i}": 400 for i in range(4)}


@pytest.mark.parametrize("rate", [10, 40, 100, 200])
@pytest.mark.parametrize("link", ["InfiniBand", "Ethernet"])
def test_a_link_that_trained_slowly_counts_and_is_said_to_be_slow(rate: int, link: str, tmp_path: Path) -> None:
    found = read(tmp_path, a=host_texts.ibstat({**FOUR, "mlx5_2": rate}, link=link))
    assert rates(found) == {"a": {**FOUR, "mlx5_2": rate}}
    assert f"mlx5_2: slow: it counts, at {rate}Gb/s, where 400Gb/s is usual" in "".join(found.notes)


@pytest.mark.parametrize("models", [{"mlx5_4": "MT4117"}, {"mlx5_4": "MT4127"}])
def test_another_card_is_a_management_port(models: dict[str, str], tmp_path: Path) -> None:
    found = read(tmp_path, a=host_texts.ibstat({**FOUR, "mlx5_4": 25}, models=models))
    assert rates(found) == {"a": FOUR}
    assert "management port" in "".join(found.notes)


def test_infiniband_of_an_unknown_model_is_for_training(tmp_path: Path) -> None:
    found = read(tmp_path, a=tool_texts.ibstatus({**FOUR, "mlx5_1": 10}))
    assert rates(found) == {"a": {**FOUR, "mlx5_1": 10}}
    other = read(tmp_path, b=tool_texts.ibstatus({**FOUR, "mlx5_1": 10}, link="Ethernet"))
    assert rates(other) == {"b": {name: rate for name, rate in FOUR.items() if name != "mlx5_1"}}


def test_what_counts_on_most_servers_is_no_management_port_on_one(tmp_path: Path) -> None:
    """ethtool tells no model: the others do. A management port that all have stays one."""
    whole = {"b0": 100, **FOUR}

    def text(speeds: dict[str, int]) -> str:
        return "".join(
            f"Settings for {name}:\n\tSpeed: {gbps * 1000}Mb/s\n\tLink detected: yes\n"
            for name, gbps in {**speeds, "eno1": 10}.items()
        )

    found = read(tmp_path, a=text({**whole, "mlx5_3": 10}), b=text(whole), c=text(whole))
    assert rates(found) == {"a": {**whole, "mlx5_3": 10}, "b": whole, "c": whole}
    assert "mlx5_3: slow: it counts, at 10Gb/s, where 400Gb/s is usual on other servers" in "".join(found.notes)
    assert sum("eno1" in note and "management" in note for note in found.notes) == 1


# NCCL's log

USING = "NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [2]mlx5_2:1/IB [3]mlx5_3:1/IB [RO]; OOB eth0:192.0.2."


def job(old: bool = False, nvml: bool = False, pxn: bool = False) -> str:
    """Three hosts of four GPUs; first all ranks, then for each GPU a communicator of the three hosts' ranks, each
    numbered from 0; then one in each host. GPU g uses mlx5_g. old : NCCL tells a communicator after its channels, and
    without an id; nvml : each process sees one GPU."""
    lines, hosts = [], range(3)
    for h in hosts:
        for g in range(4):
            lines.append(f"h{h}:{100 + g}:{200 + g} [{0 if nvml else g}] NCCL INFO {USING}{h + 1}<0>")

    def comm(members: list[tuple[int, int]], number: int, channels: list[tuple[int, int]]) -> None:
        """`channels` : (from, to) by rank."""
        for end in ("START", "COMPLETE"):
            if end == "COMPLETE":
                for one, other in channels:
                    for rank, way in ((one, "send"), (other, "receive")):
                        h, g = members[rank]
                        nic = f"{g}({(rank + 1) % len(members)})" if pxn and way == "send" else f"{g}"
                        lines.append(
                            f"h{h}:{100 + g}:{200 + g} [{0 if nvml else g}] NCCL INFO Channel 00/0 : "
                            f"{one}[{members[one][1]}] -> {other}[{members[other][1]}] [{way}] via NET/IB/{nic}/GDRDMA"
                        )
            for rank, (h, g) in enumerate(members):
                device = f"cudaDev {0 if nvml else g}" + ("" if old else f" nvmlDev {g}")
                ident = "" if old else f" commId 0x{number:x}"
                if not (old and end == "START"):
                    lines.append(
                        f"h{h}:{100 + g}:{200 + g} [{0 if nvml else g}] NCCL INFO comm 0x{number * 4096 + rank:x} rank "
                        f"{rank} nranks {len(members)} {device} busId {g}b000{ident} - Init {end}"
                    )

    world = [(h, g) for h in hosts for g in range(4)]
    comm(world, 1, [(3, 4), (7, 8), (11, 0)])
    for g in range(4):
        for again in range(2):
            comm([(h, g) for h in hosts], 16 * g + again + 2, [(0, 1), (1, 2), (2, 0)])
    for h in hosts:
        comm([(h, g) for g in range(4)], 100, [])
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("wrap", ["", "0: ", "[1,0]<stdout>:"])
@pytest.mark.parametrize("how", [{}, {"old": True}, {"nvml": True}])
def test_ranks_of_several_communicators_are_different_numbers(how: dict[str, bool], wrap: str, tmp_path: Path) -> None:
    path = tmp_path / "job.log"
    path.write_text("".join(f"{wrap}{line}\n" for line in job(**how).splitlines()))
    servers = load_topology(str(path), nic_rate="400Gb/s").cluster.servers
    assert [server.name for server in servers] == ["h0", "h1", "h2"]
    for server in servers:
        assert server.gpus == 4
        assert [(nic.name, nic.gpu, nic.rail) for nic in server.nics] == [(f"mlx5_{g}", g, g) for g in range(4)]


def test_a_nic_of_another_rank_s_gpu_tells_nothing_of_the_sender_s(tmp_path: Path) -> None:
    """With PXN a rank sends over the NIC of another GPU of its host, whose rank is in brackets."""
    path = tmp_path / "job.log"
    lines = job(pxn=True).replace("NET/IB/0(", "NET/IB/3(").splitlines()
    path.write_text(
        "".join(f"{line}\n" * (9 if "[0] NCCL INFO" in line and "NET/IB/3(" in line else 1) for line in lines)
    )
    found = load_topology(str(path), nic_rate="400Gb/s").cluster.servers[0]
    assert [(nic.name, nic.gpu) for nic in found.nics] == [(f"mlx5_{g}", g) for g in range(4)]
