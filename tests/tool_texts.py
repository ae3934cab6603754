"""What operators' tools print, in their documented formats, written here: names and numbers belong to no machine."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

LANES = {50: "12.5", 100: "25.0", 200: "50.0", 400: "100.0"}
BAUD = {10: "2.5", 40: "10.0", 100: "25.78125", 200: "53.125", 400: "106.25"}
GENERATIONS = {100: "EDR", 200: "HDR", 400: "NDR"}


def ibstatus(nics: Mapping[str, int], down: Sequence[str] = (), link: str = "InfiniBand") -> str:
    return "\n".join(
        f"Infiniband device '{name}' port 1 status:\n"
        f"\tdefault gid:\t fe80:0000:0000:0000:0000:00ff:fe00:{i:04x}\n\tbase lid:\t 0x{i + 1:x}\n\tsm lid:\t\t 0x1\n"
        f"\tstate:\t\t {'1: DOWN' if name in down else '4: ACTIVE'}\n"
        f"\tphys state:\t {'3: Disabled' if name in down else '5: LinkUp'}\n"
        f"\trate:\t\t {rate} Gb/sec (4X {GENERATIONS.get(rate, 'SDR')})\n\tlink_layer:\t {link}\n"
        for i, (name, rate) in enumerate(nics.items())
    )


def rdma_link(nics: Sequence[str], down: Sequence[str] = (), old: bool = False) -> str:
    lines = []
    for i, name in enumerate(nics):
        head = f"{i}/1: {name}/1:" if old else f"link {name}/1"
        state = "state DOWN physical_state DISABLED" if name in down else "state ACTIVE physical_state LINK_UP"
        lines.append(f"{head} {state} netdev ens{i}f0np0 \n")
    return "".join(lines)


def devinfo(nics: Mapping[str, int], down: Sequence[str] = (), verbose: bool = True) -> str:
    cards = []
    for i, (name, rate) in enumerate(nics.items()):
        more = (
            f"\t\t\tmax_msg_sz:\t\t0x40000000\n\t\t\tactive_width:\t\t4X (2)\n"
            f"\t\t\tactive_speed:\t\t{LANES[rate]} Gbps (128)\n\t\t\tphys_state:\t\tLINK_UP (5)\n"
            f"\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:0000:00ff:fe00:{i:04x}\n"
            f"\t\t\tGID[  3]:\t\t::ffff:198.51.100.{i + 1}\n"
        )
        cards.append(
            f"hca_id:\t{name}\n\ttransport:\t\t\tInfiniBand (0)\n\tfw_ver:\t\t\t\t28.39.1002\n"
            f"\tnode_guid:\t\t\t0000:00ff:fe00:{16 * i:04x}\n\tsys_image_guid:\t\t\t0000:00ff:fe00:{16 * i:04x}\n"
            f"\tvendor_id:\t\t\t0x02c9\n\tvendor_part_id:\t\t\t4129\n\tphys_port_cnt:\t\t\t1\n\t\tport:\t1\n"
            f"\t\t\tstate:\t\t\t{'PORT_DOWN (1)' if name in down else 'PORT_ACTIVE (4)'}\n"
            f"\t\t\tmax_mtu:\t\t4096 (5)\n\t\t\tsm_lid:\t\t\t1\n\t\t\tport_lid:\t\t{i + 1}\n"
            f"\t\t\tlink_layer:\t\tEthernet\n{more if verbose else ''}\n"
        )
    return "".join(cards)


def fabric(
    hosts: Sequence[str], nics: Mapping[str, int], slow: Mapping[str, int] | None = None, one_line: bool = False
) -> str:
    """iblinkinfo: `slow` by "host nic", 0 for no link."""
    lines = []
    for h, host in enumerate(hosts):
        for n, (nic, rate) in enumerate(nics.items()):
            own = (slow or {}).get(f"{host} {nic}", rate)
            up = f"4X {BAUD[own]:>13} Gbps Active/  LinkUp" if own else "               Down/ Polling"
            peer = f'{n + 1:3d}   {h + 1}[  ] "MF0;leaf{n}:MQM9700/U1" ( )' if own else '            [  ] "" ( )'
            place = f"0x0002c90300{h:02x}{n:02x}79"
            if one_line:
                lines.append(
                    f'{place} "            {host} {nic}"  {h + 5}    1[  ] ==( {up})==>  0x0002c90200000001 {peer}'
                )
            else:
                lines += [f"CA: {host} {nic}:", f"      {place}      {h + 5}    1[  ] ==( {up})==>     {peer}"]
    return "\n".join(lines) + "\n"


def mlxlink(speed: str, state: str = "Active", command: str = "", advice: str = "No issue was observed") -> str:
    return (
        f"{command}\nOperational Info\n----------------\nState                              : {state}\n"
        f"Physical state                     : LinkUp\nSpeed                              : {speed}\n"
        "Width                              : 4x\nFEC                                : Standard RS-FEC\n"
        "Auto Negotiation                   : ON\n\nTroubleshooting Info\n--------------------\n"
        "Status Opcode                      : 0\nGroup Opcode                       : N/A\n"
        f"Recommendation                     : {advice}\n"
    )


def perfquery(lid: int = 37, **counters: int) -> str:
    names = {"SymbolErrorCounter": 0, "LinkErrorRecoveryCounter": 0, "LinkDownedCounter": 0, "PortRcvErrors": 0}
    lines = [f"{name}:{'.' * (33 - len(name))}{value}" for name, value in (names | counters).items()]
    head = f"# Port counters: Lid {lid} port 1 (CapMask: 0x5300)\nPortSelect:......................1\n"
    return head + "CounterSelect:...................0x0000\n" + "\n".join(lines) + "\n"


def ethtool_s(command: str = "", **counters: int) -> str:
    values = {"rx_packets": 62, "rx_crc_errors_phy": 0, "link_down_events_phy": 0} | counters
    return f"{command}\nNIC statistics:\n" + "".join(f"     {name}: {value}\n" for name, value in values.items())


def metrics(node: str, gpu: int, gbs: float, nodes: int = 2, ranks: int = 4, size: str = "1-2GB") -> str:
    """NCCL Inspector's for Prometheus."""
    labels = (
        f'version="v5.1",slurm_job_id="7",node="{node}",gpu="GPU{gpu}",comm_name="world",n_nodes="{nodes}",'
        f'nranks="{ranks}",collective="AllReduce",message_size="{size}",algo_proto="RING_SIMPLE"'
    )
    return f"nccl_bus_bandwidth_gbs{{{labels}}} {gbs:.6g}\nnccl_collective_exec_time_microseconds{{{labels}}} 5563\n"


def mooncake(own: str, nic: str, peer: str, peer_nic: str, words: str = "transport retry counter exceeded") -> str:
    """The transfer engine's log."""
    return (
        f"I1116 22:49:45.799160 3486327 transfer_engine.cpp:146] Transfer Engine RPC using P2P handshake, listening on "
        f"{own}:16068\n"
        f"E1116 22:50:59.104586 27322 worker_pool.cpp:291] Worker: Process failed for slice (opcode: 1, source_addr: "
        f"0x7f20fe0f1680, length: 65536, dest_addr: 0x7f3d820f3a80, local_nic: {nic}, "
        f"peer_nic: {peer}:15729@{peer_nic}, "
        f"dest_rkey: 2116517, retry_cnt: 0): {words}\n"
    )


# What tools tell of a host, in the forms in which they print it: names, addresses and numbers belong to no machine.


def ibstat(
    nics: Mapping[str, int],
    down: Sequence[str] = (),
    link: str = "InfiniBand",
    models: Mapping[str, str] | None = None,
    guids: Mapping[str, tuple[int, int]] | None = None,
) -> str:
    """rdma-core's ibstat: name -> Gb/s; by name the model, else MT4129, and system image and node GUID."""
    cards = []
    for i, (name, rate) in enumerate(nics.items()):
        state, physical = ("Down", "Disabled") if name in down else ("Active", "LinkUp")
        model, (image, node) = (models or {}).get(name, "MT4129"), (guids or {}).get(name, (16 * i, 16 * i))
        cards.append(
            f"CA '{name}'\n\tCA type: {model}\n\tNumber of ports: 1\n\tFirmware version: 28.39.1002\n"
            f"\tHardware version: 0\n\tNode GUID: 0x{node:016x}\n\tSystem image GUID: 0x{image:016x}\n\tPort 1:\n"
            f"\t\tState: {state}\n\t\tPhysical state: {physical}\n\t\tRate: {rate}\n\t\tBase lid: {i + 1}\n\t\tLMC: 0\n"
            f"\t\tSM lid: 1\n\t\tCapability mask: 0xa751e848\n\t\tPort GUID: 0x{i:016x}\n\t\tLink layer: {link}\n"
        )
    return "".join(cards)


def ibdev2netdev(nics: Sequence[str], down: Sequence[str] = ()) -> str:
    return "".join(f"{nic} port 1 ==> ib{i} ({'Down' if nic in down else 'Up'})\n" for i, nic in enumerate(nics))


def rdma_link_json(nics: Sequence[str], down: Sequence[str] = ()) -> str:
    """iproute2's ``rdma link -j``."""
    states = {True: ("DOWN", "DISABLED"), False: ("ACTIVE", "LINK_UP")}
    links = []
    for i, nic in enumerate(nics):
        state, physical = states[nic in down]
        links.append(
            {"ifindex": i, "ifname": nic, "port": 1, "state": state, "physical_state": physical, "netdev": f"e{i}"}
        )
    return json.dumps(links)


def rocm_smi(gpus: int, link: str = "XGMI") -> str:
    """``rocm-smi --showtopo``."""
    names = [f"GPU{g}" for g in range(gpus)]

    def table(title: str, cell: str) -> list[str]:
        rows = ["".join(f"{('0' if row == column else cell):<13}" for column in names) for row in names]
        return [f"{title:=^80}", " " * 7 + "".join(f"{name:<13}" for name in names)] + [
            f"{name:<7}{row}" for name, row in zip(names, rows, strict=True)
        ]

    lines = [f"{' ROCm System Management Interface ':=^80}"]
    for title, cell in (("Weight", "15"), ("Hops", "1"), ("Link Type", link)):
        lines += [*table(f" {title} between two GPUs ", cell), ""]
    lines.append(f"{' Numa Nodes ':=^80}")
    for g in range(gpus):
        lines += [f"GPU[{g}]\t\t: (Topology) Numa Node: {g // 4}", f"GPU[{g}]\t\t: (Topology) Numa Affinity: {g // 4}"]
    return "\n".join([*lines, f"{' End of ROCm SMI Log ':=^80}"]) + "\n"


def amd_smi(gpus: int) -> str:
    """``amd-smi topology``."""
    addresses = [f"0000:{16 * g + 12:02x}:00.0" for g in range(gpus)]

    def table(title: str, same: str, cell: str) -> list[str]:
        head = " " * 13 + " ".join(f"{address:12}" for address in addresses)
        rows = [" ".join(f"{(same if a == b else cell):12}" for b in addresses) for a in addresses]
        return [f"{title}:", head] + [f"{a:13}{row}" for a, row in zip(addresses, rows, strict=True)] + [""]

    tables = (("ACCESS TABLE", "ENABLED", "ENABLED"), ("WEIGHT TABLE", "0", "15"), ("HOPS TABLE", "0", "1"),
              ("LINK TYPE TABLE", "SELF", "XGMI"), ("NUMA BW TABLE", "N/A", "50000-50000"))  # fmt: skip
    return "\n".join(line for each in tables for line in table(*each))


def nccl_log(
    hosts: Sequence[str], nics: Sequence[str], speed: int = 400_000, gpus: int = 4, fused: str = "", of: str = ""
) -> str:
    """NCCL's INFO of its network: `gpus` ranks a host, GPU g sending over NIC g; Mb/s; a NIC `fused` of others.

    of : the lines of this host alone
    """
    lines = []
    for h, host in enumerate(hosts):
        for g in range(gpus):
            before, rank, there = f"{host}:{100 + g}:{200 + g} [{g}] NCCL INFO", h * gpus + g, (h + 1) % len(hosts)
            for n, nic in enumerate(nics):
                ends = f"{nic}:uverbs{n}:1/RoCE provider=Mlx5 speed={speed} context=0x55 pciPath=/sys/devices/pci ar=0"
                lines.append(f"{before} NET/IB: [{n}] {ends}")
                lines.append(f"{before} NET/IB : Made virtual device [{n}] name={nic} speed={speed} ndevs=1")
            cards = " ".join(f"[{n}]{nic}:1/RoCE" for n, nic in enumerate(nics))
            lines.append(f"{before} NET/IB : Using {cards} [RO]; OOB eth0:192.0.2.{h + 1}<0>")
            if fused:
                count = fused.count("+") + 1
                made = f"[{len(nics)}] name={fused} speed={count * speed} ndevs={count}"
                lines.append(f"{before} NET/IB : Made virtual device {made}")
            lines.append(
                f"{before} comm 0x55 rank {rank} nranks {len(hosts) * gpus} cudaDev {g} nvmlDev {g} busId 1b000"
            )
            card = len(nics) if fused else g % len(nics)
            for way, one, other in (("send", rank, there * gpus + g), ("receive", there * gpus + g, rank)):
                ends = f"Channel 00/0 : {one}[{g}] -> {other}[{g}]"
                lines.append(f"{before} {ends} [{way}] via NET/IB/{card}/GDRDMA")
    return "\n".join(line for line in lines if line.startswith(of)) + "\n"
