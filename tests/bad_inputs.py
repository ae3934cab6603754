"""One table of everything wrong that a person may give, and what the message must say about it.

A row is a command line: `args` of optcc, in which ``{dir}`` stands for a directory that holds `files`. It must fail
with status 2, nothing on stdout, and every one of `fragments` on stderr, which can be read. Good input in the same
shapes passes.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import optcc
from optcc.plans.files import HEADER, archive
from tests.plan_cases import again, parts

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
UNIFORM = "uniform:servers=4,nics=2,rate=400Gb/s"


class BadInput(NamedTuple):
    """A command line that must be refused; `files` are names and contents."""

    id: str
    files: Mapping[str, str | bytes]
    args: list[str]
    fragments: list[str]


def bad(id: str, args: list[str], fragments: list[str], files: Mapping[str, str | bytes] | None = None) -> BadInput:
    return BadInput(id, files or {}, args, fragments)


def _size(text: str) -> list[str]:
    return ["bound", UNIFORM, "--size", text]


def _bound(source: str, *options: str) -> list[str]:
    return ["bound", source, *options, "--size", "1GiB"]


def _xml(body: str) -> dict[str, str]:
    return {"bad.xml": f'<system version="1">\n<cpu numaid="0">\n{body}\n</cpu>\n</system>\n'}


def _net(name: str = "mlx5_0", dev: str = "0", speed: str = "400000", rest: str = 'port="1" gdr="1"') -> str:
    return f'<pci busid="0000:01:00.0"><nic><net name="{name}" dev="{dev}" speed="{speed}" {rest}/></nic></pci>'


def _yaml(body: str) -> dict[str, str]:
    return {"bad.yaml": f"optcc: 1\n{body}"}


PLAN = optcc.plan(optcc.Cluster.uniform(servers=4, nics=2, rate=50 * 10**9), 2**20).to_bytes()


def _plan(data: bytes = PLAN, **changes: object) -> dict[str, bytes]:
    """A plan file; `changes` of its header, to which the id is made to fit."""
    header, columns = parts(PLAN)
    return {"a.plan": again({**header, **changes}, columns) if changes else data}


BAD_XML = _bound("{dir}/bad.xml")
BAD_YAML = _bound("{dir}/bad.yaml")
VERIFY = ["verify", "{dir}/a.plan"]
NIC = "{name: a, rate: 400Gb/s}"

BAD_INPUTS = [
    # Sizes, rates and times
    bad("size-unit", _size("1GX"), ["--size", "not a size", "such as 1GiB", "'1GX'"]),
    bad("size-empty", _size(""), ["--size", "not a size", "such as 1GiB"]),
    bad("size-comma", _size("1,5GB"), ["--size", "not a size", "'1,5GB'"]),
    bad("size-is-a-rate", _size("400Gb/s"), ["--size", "not a size", "'400Gb/s'"]),
    bad("size-of-bits", _size("1Gib"), ["--size", "a size in bits", "1GiB with a large B", "'1Gib'"]),
    bad("size-of-half-a-byte", _size("0.5B"), ["--size", "whole bytes", "'0.5B'"]),
    bad("size-negative", _size("-1GiB"), ["--size", "out of range", "0 to 1EiB", "'-1GiB'"]),
    bad("size-huge", _size("9999999TiB"), ["--size", "out of range", "0 to 1EiB"]),
    bad("size-power", _size("9**9**9**9 B"), ["--size", "not a size"]),
    bad("size-superscript", _size("9⁹⁹⁹⁹⁹⁹⁹⁹⁹ B"), ["--size", "not a size"]),
    bad("size-exponent", _size("1e999999999GiB"), ["--size", "not a size"]),
    bad("size-digits", _size("9" * 5000), ["--size", "not a size"]),
    bad("nic-rate-without-unit", _bound(UNIFORM, "--nic-rate", "400"), ["--nic-rate", "not a rate", "400Gb/s"]),
    bad("nic-rate-zero", _bound(UNIFORM, "--nic-rate", "0Gb/s"), ["--nic-rate", "more than 0", "'0Gb/s'"]),
    bad("nic-rate-negative", _bound(UNIFORM, "--nic-rate=-1Gb/s"), ["--nic-rate", "0 or more", "'-1Gb/s'"]),
    bad(
        "alpha-without-unit",
        ["simulate", "{dir}/a.plan", "--alpha", "5"],
        ["--alpha", "not a time", "such as 5us", "'5'"],
        _plan(),
    ),
    bad(
        "alpha-negative",
        ["simulate", "{dir}/a.plan", "--alpha=-5us"],
        ["--alpha", "negative time", "0 or more", "'-5us'"],
        _plan(),
    ),
    # Presets
    bad("preset-unknown", _bound("dgx:servers=8"), ["dgx:servers=8", "cannot be read", "uniform:servers=8"]),
    bad("preset-empty", _bound("uniform:"), ["uniform:", "KEY=VALUE", "servers, nics, rate, gpus, nvlink"]),
    bad(
        "preset-unknown-key",
        _bound(f"{UNIFORM},speed=3"),
        ["uniform:servers=4", "servers, nics, rate, gpus, nvlink", "'speed=3'"],
    ),
    bad("preset-key-twice", _bound(f"{UNIFORM},nics=3"), ["key given twice", "one nics=", "'nics=3'"]),
    bad("preset-key-missing", _bound("uniform:nics=8,rate=1Gb/s"), ["key missing", "servers=", "For example"]),
    bad("preset-rate-missing", _bound("uniform:servers=4,nics=8"), ["key missing", "rate=", "For example"]),
    bad("preset-number", _bound("uniform:servers=eight,nics=8,rate=1Gb/s"), ["servers", "number", "'eight'"]),
    bad("preset-no-server", _bound("uniform:servers=0,nics=8,rate=1Gb/s"), ["servers", "1 to 65536", "got 0"]),
    bad("preset-no-gpu", _bound(f"{UNIFORM},gpus=0"), ["gpus", "1 to 65536", "got 0"]),
    bad("preset-rate", _bound("uniform:servers=4,nics=8,rate=fast"), ["uniform:rate", "400Gb/s", "'fast'"]),
    bad(
        "preset-too-large",
        _bound("uniform:servers=65536,nics=65536,rate=1Gb/s"),
        ["too many NICs", "at most 1048576", "got 4294967296"],
    ),
    bad(
        "preset-dead",
        _bound("uniform:servers=4,nics=8,rate=0Gb/s"),
        ["server0", "no AllReduce is possible", "live NIC"],
    ),
    bad(
        "servers-of-a-cluster",
        _bound(UNIFORM, "--servers", "8"),
        ["--servers", "only a one-server topology", "got '4 servers'", "Drop --servers"],
    ),
    bad("servers-none", _bound(str(EXAMPLES / "h100-8x400g.nccl-topo.xml"), "--servers", "0"), ["--servers", "got 0"]),
    # Files of either kind
    bad("file-missing", _bound("{dir}/none.xml"), ["none.xml", "cannot be read", "No such file", "preset"]),
    bad("file-directory", _bound("{dir}"), ["no file", "one for each host"]),
    bad("file-too-large", BAD_YAML, ["bad.yaml", "too large", "2097152 bytes"], {"bad.yaml": " " * (2**21 + 1)}),
    bad("file-is-a-plan", _bound("{dir}/a.plan"), ["a.plan", "not a topology", "a plan, or another zip"], _plan()),
    # NCCL XML
    bad("xml-empty", BAD_XML, ["bad.xml:1", "not well-formed XML"], {"bad.xml": ""}),
    bad("xml-binary", BAD_XML, ["bad.xml:1", "not well-formed XML"], {"bad.xml": "\x00\x01<"}),
    bad(
        "xml-truncated",
        BAD_XML,
        ["bad.xml:3", "not well-formed XML", "NCCL's topology XML"],
        {"bad.xml": '<system version="1">\n<cpu numaid="0">\n<pci busid="0000:01'},
    ),
    bad(
        "xml-doctype",
        BAD_XML,
        ["bad.xml", "DOCTYPE", "Delete it"],
        {"bad.xml": '<!DOCTYPE s [<!ENTITY a "aa"><!ENTITY b "&a;&a;">]><system><cpu host_hash="&b;"/></system>'},
    ),
    bad(
        "xml-graph",
        BAD_XML,
        ["bad.xml:1", "an NCCL graph dump, not a topology", "<system>", "<graphs>", "NCCL_TOPO_DUMP_FILE"],
        {"bad.xml": '<graphs version="1"/>'},
    ),
    bad("xml-other", BAD_XML, ["bad.xml:2", "<system>", "<svg>"], {"bad.xml": "<?xml version='1.0'?>\n<svg/>"}),
    bad("xml-no-net", BAD_XML, ["bad.xml", "no <net>", "NCCL_TOPO_DUMP_FILE"], _xml('<pci busid="0"/>')),
    bad("xml-no-net-in-use", BAD_XML, ["bad.xml", "no NIC in use"], _xml(_net(rest='keep="0"'))),
    bad("xml-no-dev", BAD_XML, ["bad.xml", "no NIC in use"], _xml('<nic><net name="a" speed="1"/></nic>')),
    bad(
        "xml-speed-unknown",
        BAD_XML,
        ["bad.xml:3: <net mlx5_0>", "no usable speed", "Mb/s", "'-1'", "--nic-rate 400Gb/s"],
        _xml(_net(speed="-1")),
    ),
    bad(
        "xml-speed-zero",
        BAD_XML,
        ["bad.xml:4: <net mlx5_1>", "'0'", "--nic-rate"],
        _xml(f"{_net()}\n{_net('mlx5_1', '1', '0')}"),
    ),
    bad("xml-speed-absurd", BAD_XML, ["bad.xml:3", "1000 to 10000000", "--nic-rate"], _xml(_net(speed="123456789"))),
    bad("xml-speed-word", BAD_XML, ["bad.xml:3", "no usable speed", "'fast'"], _xml(_net(speed="fast"))),
    bad("xml-dev", BAD_XML, ["bad.xml:3: <net mlx5_0>", "no usable dev", "'first'"], _xml(_net(dev="first"))),
    bad("xml-name", BAD_XML, ["bad.xml:3: <net a/b>", "not a NIC name", "'a/b'"], _xml(_net("a/b"))),
    bad("xml-web-page", BAD_XML, ["bad.xml", "a web page", "raw file"], {"bad.xml": "<!DOCTYPE html>\n<html/>"}),
    bad("xml-nics-none", [*BAD_XML, "--nics", "mlx5_9"], ["--nics", "no NIC of this name", "'mlx5_9'"], _xml(_net())),
    bad("nics-unknown", [*BAD_XML, "--nics", "mlx5_0,b"], ["--nics", "no NIC of this name", "'b'"], _xml(_net())),
    bad("nics-empty", [*BAD_XML, "--nics", "^"], ["--nics", "not a list of NICs"], _xml(_net())),
    bad("nic-rate-twice", [*BAD_XML, "--nic-rate", "1Gb/s,2Gb/s"], ["--nic-rate", "two rates"], _xml(_net())),
    bad("hosts-and-servers", [*BAD_XML, "--hosts", "a,b", "--servers", "2"], ["one or the other"], _xml(_net())),
    bad("hosts-bad", [*BAD_XML, "--hosts", "a*"], ["--hosts", "not a list of hosts", "'a*'"], _xml(_net())),
    bad("hosts-bomb", [*BAD_XML, "--hosts", "a[0-99999]b[0-99999]"], ["--hosts", "too many hosts"], _xml(_net())),
    bad("hosts-twice", [*BAD_XML, "--hosts", "a,b,a"], ["--hosts", "a host twice", "'a'"], _xml(_net())),
    bad("hosts-of-two", _bound("uniform:servers=2,rate=1Gb/s", "--hosts", "a,b,c"), ["--hosts", "2 names", "got 3"]),
    bad(
        "xml-nvlink",
        BAD_XML,
        ["bad.xml:4: <nvlink>", "no usable count", "'many'"],
        _xml(f'{_net()}\n<pci><gpu dev="0" sm="90"><nvlink count="many" tclass="0x068000"/></gpu></pci>'),
    ),
    bad("xml-gpu-without-dev", BAD_XML, ["bad.xml:4: <gpu>", "no usable dev", "nothing"], _xml(f"{_net()}\n<gpu/>")),
    bad("xml-too-many", BAD_XML, ["bad.xml:1027", "too many <net>", "at most 1024"], _xml("<net/>\n" * 1025)),
    # YAML
    bad("yaml-empty", BAD_YAML, ["bad.yaml", "one YAML document", "got 0"], {"bad.yaml": "# nothing\n"}),
    bad("yaml-binary", BAD_YAML, ["bad.yaml", "not YAML"], {"bad.yaml": "\x00\x01"}),
    bad("yaml-syntax", BAD_YAML, ["bad.yaml:4", "not YAML"], _yaml("servers:\n  - [a\n")),
    bad("yaml-version", BAD_YAML, ["bad.yaml", "optcc: 1", "'2'"], {"bad.yaml": "optcc: 2\nservers: []\n"}),
    bad("yaml-no-version", BAD_YAML, ["bad.yaml", "starts with the line `optcc: 1`"], {"bad.yaml": "servers: []\n"}),
    bad("yaml-list", BAD_YAML, ["bad.yaml", "not a topology", "'nothing'"], {"bad.yaml": "- optcc: 1\n"}),
    bad("yaml-no-servers", BAD_YAML, ["bad.yaml:1: $:", "a field is missing", "servers:"], _yaml("")),
    bad(
        "yaml-unknown-field",
        BAD_YAML,
        ["bad.yaml:3: $.servers[0].nics[1]:", "unknown field", "name, rate, out, in, rail", "'speed'"],
        _yaml(f"servers:\n- nics: [{NIC}, {{name: b, speed: 3}}]\n"),
    ),
    bad(
        "yaml-unknown-field-further-down",
        BAD_YAML,
        ["bad.yaml:4: $.servers[0]:", "unknown field", "'colour'"],
        _yaml(f"servers:\n- nics: [{NIC}]\n  colour:\n    - red\n"),
    ),
    bad("yaml-no-nics", BAD_YAML, ["bad.yaml:3: $.servers[0]:", "nics:"], _yaml("servers:\n- gpus: 8\n")),
    bad("yaml-empty-nics", BAD_YAML, ["$.servers[0].nics:", "length >= 1"], _yaml("servers:\n- nics: []\n")),
    bad("yaml-text-for-list", BAD_YAML, ["$.servers:", "a list", "'eight'"], _yaml("servers: eight\n")),
    bad(
        "yaml-rate",
        BAD_YAML,
        ["bad.yaml:5: $.servers[0].nics[1].rate:", "not a rate", "400Gb/s", "'fast'"],
        _yaml(f"servers:\n- nics:\n  - {NIC}\n  - {{name: b, rate: fast}}\n"),
    ),
    bad(
        "yaml-gpus",
        BAD_YAML,
        ["$.servers[0].gpus:", "whole number", "'eight'"],
        _yaml(f"servers: [{{gpus: eight, nics: [{NIC}]}}]"),
    ),
    bad(
        "yaml-no-gpu", BAD_YAML, ["$.servers[0].gpus:", ">= 1", "'0'"], _yaml(f"servers: [{{gpus: 0, nics: [{NIC}]}}]")
    ),
    bad(
        "yaml-rate-and-out",
        BAD_YAML,
        ["$.servers[0].nics[0]:", "rate, or out and in", "'rate and out'"],
        _yaml("servers: [{nics: [{name: a, rate: 1Gb/s, out: 1Gb/s}]}]"),
    ),
    bad(
        "yaml-no-rate",
        BAD_YAML,
        ["$.servers[0].nics[0]:", "rate, or out and in", "'neither'", "--nic-rate 400Gb/s"],
        _yaml("servers: [{nics: [{name: a}]}]"),
    ),
    bad("yaml-alias", BAD_YAML, ["bad.yaml:2", "an anchor or alias"], _yaml(f"servers: [&s {{nics: [{NIC}]}}, *s]")),
    bad("yaml-deep", BAD_YAML, ["bad.yaml:2", "nested too deeply"], _yaml("servers: " + "[" * 50)),
    bad("yaml-deepest", BAD_YAML, ["bad.yaml:2", "nest"], _yaml("servers: " + "[" * 100000)),  # newer PyYAML refuses it
    bad("yaml-long", BAD_YAML, ["bad.yaml:2", "too long a value"], _yaml(f"servers: {'x' * 1000}")),
    bad("yaml-key-twice", BAD_YAML, ["bad.yaml:3", "gpus given twice"], _yaml("servers: [{gpus: 1,\n gpus: 2}]")),
    bad("yaml-key-list", BAD_YAML, ["bad.yaml:2", "a key that is not a word"], _yaml("[a]: 1\n")),
    bad("yaml-two-documents", BAD_YAML, ["bad.yaml", "one YAML document", "got 2"], _yaml("---\noptcc: 1\n")),
    bad(
        "yaml-same-nic",
        BAD_YAML,
        ["$.servers[0]", "two NICs of one name", "'a'"],
        _yaml(f"servers: [{{nics: [{NIC}, {NIC}]}}]"),
    ),
    bad(
        "yaml-same-server",
        BAD_YAML,
        ["bad.yaml", "two servers of one name", "'server1'"],
        _yaml(f"servers: [{{name: server1, nics: [{NIC}]}}, {{nics: [{NIC}]}}]"),
    ),
    bad(
        "yaml-server-name",
        BAD_YAML,
        ["bad.yaml:2: $.servers[0]", "not a server name", "'a b'"],
        _yaml(f"servers: [{{name: a b, nics: [{NIC}]}}]"),
    ),
    bad(
        "yaml-copy-name",
        BAD_YAML,
        ["bad.yaml:2: $.servers[0]", "not a server name", "255"],
        _yaml(f"servers: [{{name: {'x' * 254}, count: 2, nics: [{NIC}]}}]"),
    ),
    bad(
        "yaml-too-large",
        BAD_YAML,
        ["bad.yaml", "too many NICs", "at most 1048576"],
        _yaml("servers:\n" + f"- {{count: 65536, nics: [{NIC}]}}\n" * 17),
    ),
    # --fail
    bad(
        "fail-server",
        _bound(UNIFORM, "--fail", "server9/nic0"),
        ["--fail server9/nic0", "no such server", "server0, server1"],
    ),
    bad(
        "fail-nic",
        _bound(UNIFORM, "--fail", "server0/mlx5_0"),
        ["--fail server0/mlx5_0", "no such NIC in server0", "nic0, nic1"],
    ),
    bad(
        "fail-no-nic",
        _bound(UNIFORM, "--fail", "server0"),
        ["--fail server0", "takes no part", "SERVER=LEFT", "'server0'"],
    ),
    bad("fail-empty", _bound(UNIFORM, "--fail", ""), ["--fail", "not a NIC", "SERVER/NIC"]),
    *(
        bad(f"fail-fraction-{name}", _bound(UNIFORM, "--fail", f"server0/nic0={text}"), ["--fail server0/nic0", "37%"])
        for name, text in {
            "none": "",
            "nan": "nan",
            "above": "1.5",
            "percent": "101%",
            "negative": "-0.5",
            "exponent": "1e999999999",
            "by-zero": "1/0",
            "ratio": "5/3",
            "word": "half",
            "digits": "9" * 100000,
        }.items()
    ),
    bad(
        "fail-twice",
        _bound(UNIFORM, "--fail", "server0/nic0", "--fail", "server0/nic0=0.5"),
        ["--fail", "the same NIC twice", "each NIC once", "'server0/nic0'"],
    ),
    bad(
        "fail-everything",
        _bound(UNIFORM, "--fail", "server1/nic0", "--fail", "server1/nic1"),
        ["server1", "no AllReduce is possible", "at least one live NIC", "Repair"],
    ),
    # Plans
    bad("segments-none", ["plan", UNIFORM, "--size", "1GiB", "--segments", "0", "-o", "{dir}/p"], ["--segments"]),
    *(
        bad(f"family-{name}", ["plan", UNIFORM, "--size", "1MiB", "--family", name], [f"--family: {what}", f"'{name}'"])
        for name, what in (
            ("inside-servers", "a family for other clusters"),
            ("ring", "a rival's schedule"),
            ("magic", "no such family"),
        )
    ),
    bad("plan-missing", VERIFY, ["a.plan", "cannot be read", "No such file"]),
    bad("plan-binary", VERIFY, ["a.plan", "not a plan file"], _plan(b"\x00\x01")),
    bad("plan-not-json", VERIFY, ["a.plan", "not a plan of this version", "optcc plan"], _plan(b"{")),
    bad("plan-truncated", VERIFY, ["a.plan", "not a plan file", "copied whole?"], _plan(PLAN[:500])),
    bad("plan-deep", VERIFY, ["a.plan", "nested deeper than 32"], _plan(archive({HEADER: b"[" * 33 + b"]" * 33}))),
    bad("plan-list", VERIFY, ["a.plan", "not an intact plan", "optcc plan"], _plan(archive({HEADER: b"[]"}))),
    bad("plan-version", VERIFY, ["a.plan", '"version": "2.x"', "'9.0'", "newer optcc"], _plan(version="9.0")),
    bad("plan-changed", VERIFY, ["a.plan", "changed", "optcc plan"], _plan(added=3)),
    bad("plan-field", VERIFY, ["a.plan", "intact"], _plan(cluster=None)),
    bad("plan-device", ["verify", "/dev/zero"], ["/dev/zero", "cannot be read", "a character device"]),
    bad(
        "plan-to-nowhere",
        ["plan", UNIFORM, "-o", "{dir}/none/p"],
        ["none/p", "cannot be written", "folder that exists"],
    ),
    bad("plan-and-json", ["plan", UNIFORM, "-o", "-", "--json"], ["-o -, --json", "two results on standard output"]),
    bad("topology-device", _bound("/dev/zero"), ["/dev/zero", "cannot be read", "a character device"]),
    bad(
        "plan-algorithm",
        ["simulate", "{dir}/a.plan", "--algorithm", "fastest"],
        ["--algorithm", "optcc", "ring", "fastest"],
        _plan(),
    ),
    bad("fault", ["simulate", "{dir}/a.plan", "--fault", "server1/nic0"], ["--fault", "@TIME"], _plan()),
    bad("fault-nic", ["simulate", "{dir}/a.plan", "--fault", "x@1us"], ["--fault", "SERVER/NIC"], _plan()),
    bad("fault-time", ["simulate", "{dir}/a.plan", "--fault", "server1/nic0@soon"], ["--fault", "soon"], _plan()),
    bad("fault-left", ["simulate", "{dir}/a.plan", "--fault", "server1/nic0@1us=2"], ["--fault", "0 to 1"], _plan()),
    bad("fault-port", ["simulate", "{dir}/a.plan", "--fault", "a/b@1us"], ["no such port", "a/b"], _plan()),
    bad("detect", ["simulate", "{dir}/a.plan", "--detect", "1ms"], ["--detect", "nothing to", "--fault"], _plan()),
    # Fault runs
    *(
        bad(f"strike-{id}", ["run", UNIFORM, "--size", "1MiB", option, f"{struck}@0.4"], [option, says, f"'{struck}'"])
        for id, option, struck, says in (
            ("kill-nic", "--kill", "server0/nic0", "expected one of server0, server1, server2, server3, got"),
            ("kill-server", "--kill", "server9", "expected one of server0, server1, server2, server3, got"),
            ("cut-nic", "--cut", "server1/nic33", "expected one of server1/nic0, server1/nic1, got"),
            ("cut-server", "--cut", "server1", "expected one of server1/nic0, server1/nic1, got"),
            ("cut-nowhere", "--cut", "server9/nic0", "expected one of server0/nic0, server0/nic1, server1/nic0"),
        )
    ),
    # Evaluation
    *(
        bad(f"exposed-{text}", ["reproduce", "--quick", "--exposed", text, "-o", "/proc/x"], ["--exposed", text])
        for text in ("nan", "inf", "-0.1", "1.1")
    ),
    *(
        bad(f"nic-share-{text}", ["reproduce", "--quick", "--nic-share", text, "-o", "/proc/x"], ["--nic-share", text])
        for text in ("0", "0%", "101%", "3/2", "many")
    ),
    # What only the command line's parser sees
    bad("command", ["bount", UNIFORM, "--size", "1GiB"], ["bount"]),
    bad("option", _bound(UNIFORM, "--failed", "server0/nic0"), ["--failed"]),
    bad("preset-for-a-plan", ["simulate", UNIFORM], ["a plan file", "No such file", "`optcc plan TOPOLOGY"]),
    bad("plan-for-a-topology", ["topo", "{dir}/a.plan"], ["not a topology", "a plan, or another zip"], _plan()),
    bad("servers-word", _bound(UNIFORM, "--servers", "eight"), ["--servers", "eight"]),
    bad("repeat-none", ["run", UNIFORM, "--size", "1MiB", "--repeat", "0"], ["--repeat", "0"]),
    bad("dtype", ["run", UNIFORM, "--size", "1MiB", "--dtype", "int7"], ["--dtype", "int7"]),
    bad("op", ["run", UNIFORM, "--size", "1MiB", "--op", "xor"], ["--op", "xor"]),
    bad(
        "transport",
        ["run", UNIFORM, "--size", "1MiB", "--transport", "pigeon"],
        ["--transport", "pigeon"],
    ),
]


GOOD_INPUTS = [
    bad("fail", _bound(UNIFORM, "--fail", "server0/nic0=37%"), []),
    bad("nic-rate", _bound("uniform:servers=4", "--nic-rate", "400Gb/s"), []),
    bad("example-xml", _bound(str(EXAMPLES / "h100-8x400g.nccl-topo.xml"), "--servers", "4"), []),
    bad("example-yaml", _bound(str(EXAMPLES / "two-degraded.yaml")), []),
    bad("xml", [*BAD_XML, "--servers", "2"], [], _xml(_net() + _net("mlx5_1", "1"))),
    bad("yaml", BAD_YAML, [], _yaml(f"servers: [{{count: 2, nics: [{NIC}]}}]")),
    bad("verify", VERIFY, [], _plan()),
    bad("simulate", ["simulate", "{dir}/a.plan", "--alpha", "5us", "--algorithm", "ring"], [], _plan()),
    bad("segments", ["plan", UNIFORM, "--size", "1GiB", "--segments", "1", "-o", "{dir}/p"], []),
]
