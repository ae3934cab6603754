"""Files of others' formats as others write them: what is known is read, what is not is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

import optcc
from optcc.cli import main
from optcc.errors import InputError, VerifyError
from optcc.export import chakra, goal, mscclpp, mscclpp_file, mscclpp_run
from optcc.export.formats import write
from optcc.plans.plan import Plan
from optcc.values.cluster import Cluster
from tests.plan_cases import bent

Path_ = tuple[str | int, ...]


def places(value: Any, path: Path_ = ()) -> Iterator[Path_]:
    """The path of every value inside a JSON value."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, part in inner:
        yield (*path, step)
        yield from places(part, (*path, step))


@cache
def plan() -> Plan:
    """Three servers of two NICs, one of which is dead."""
    return optcc.plan(Cluster.uniform(servers=3, nics=2, rate=10**9).degrade("server1/nic0"), 1536, segments=1)


@cache
def plus() -> str:
    return mscclpp_file.dump(mscclpp.export(plan(), segments=1, threadblocks=4).program)


def verified(path: Path) -> Result:
    return CliRunner().invoke(main, ["verify", str(path)])


def run_plus(content: Any) -> int:
    return mscclpp_run.run(mscclpp_file.load(json.dumps(content))).operations


# ---- MSCCL++: small plans in the shapes of its own samples ----------------------------------------------------------


def sample(*ops: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Two ranks joined by a memory channel, with scratch, that do the same."""

    def gpu(rank: int) -> dict[str, Any]:
        refs = [{"access_channel_type": "memory", "remote_buffer_ids": [0, 1]}]
        block = {"id": 0, "ops": list(ops), "channels": [{"channel_type": "memory", "channel_ids": [0]}],
                 "remote_buffer_refs": refs}  # fmt: skip
        buffers = [{"rank": 1 - rank, "type": kind, "access_channel_types": ["memory"]} for kind in "si"]
        return {"id": rank, "input_chunks": 2, "output_chunks": 2, "scratch_chunks": 2, "threadblocks": [block],
                "channels": [{"channel_type": "memory", "connected_to": [1 - rank]}], "remote_buffers": buffers,
                "semaphores": []}  # fmt: skip

    head = {"name": "sample", "collective": "allreduce", "protocol": "Simple", "inplace": True}
    return {**head, "gpus": [gpu(0), gpu(1)], **more}


def local(kind: str, index: int, size: int) -> list[dict[str, Any]]:
    return [{"type": kind, "index": index, "size": size}]


def remote(index: int, size: int) -> list[dict[str, Any]]:
    return [{"buffer_id": 0, "index": index, "size": size}]


NOP = {"name": "nop"}
BY = {"channel_type": "memory"}
SIGNAL, WAIT = ({"name": name, "channel_ids": [0], **BY} for name in ("signal", "wait"))
PUT = {"name": "put", "src_buff": local("i", 0, 2), "dst_buff": remote(0, 2), "channel_ids": [0], **BY}
ADD = {"name": "re", "src_buff": local("i", 0, 2) + local("s", 0, 2), "dst_buff": local("i", 0, 2), "reduce_op": "sum"}
EXCHANGE = (PUT, NOP, SIGNAL, WAIT, NOP, ADD, NOP, SIGNAL, WAIT)
"""All of the input to the other's scratch, both add; then both say that their scratch is free again."""


def test_fields_that_the_executor_needs_not_have_its_defaults() -> None:
    """No size, alignment, threads or scratch flags are given; then with what they are by default."""
    assert run_plus(sample(*EXCHANGE)) == 2 * len(EXCHANGE)
    defaults = {"reuse_resources": False, "num_threads_per_block": 1024, "use_double_scratch_buffer": False,
                "buffer_alignment": 16, "min_message_size": 0, "max_message_size": 2**64 - 1}  # fmt: skip
    given = mscclpp_file.load(json.dumps(sample(*EXCHANGE, **defaults)))
    assert given == mscclpp_file.load(json.dumps(sample(*EXCHANGE)))
    mscclpp_file.check_limits(given)
    assert given.max_bytes == 2**32 - 32  # what offsets of 32 bits reach, in whole chunks of 16 bytes
    with pytest.raises(InputError, match="bytes of a buffer"):  # a size that is promised, and that they do not reach
        mscclpp_file.check_limits(mscclpp_file.load(json.dumps(sample(*EXCHANGE, max_message_size=2**33))))


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"num_threads_per_block": 1}, "num_threads_per_block"),  # one thread waits on one channel of two
        ({"num_threads_per_block": 33}, "a multiple of 32"),
        ({"max_message_size": 31}, "a multiple of 32 bytes"),  # two chunks of 16 bytes
        ({"min_message_size": 65, "max_message_size": 95}, "a multiple of 32 bytes"),
    ],
)
def test_threads_and_sizes_with_which_nothing_can_run(more: dict[str, int], says: str) -> None:
    with pytest.raises(InputError, match=says):
        mscclpp_file.load(json.dumps(sample(*EXCHANGE, **more)))


@pytest.mark.parametrize("size", [64, 96])
def test_a_size_that_is_reached_exactly_can_be_sent(size: int) -> None:
    assert run_plus(sample(*EXCHANGE, min_message_size=size, max_message_size=size, num_threads_per_block=32))


@pytest.mark.parametrize("peers", [[1, 1], [1, 0], [1, 2]])
def test_a_channel_has_another_end(peers: list[int]) -> None:
    """The executor waits for it before anything runs: one too many, one to itself, one to a rank that is not there."""
    with pytest.raises(VerifyError, match="channel"):
        run_plus(bent(sample(*EXCHANGE), ("gpus", 0, "channels", 0, "connected_to"), peers))


def halves(op: dict[str, Any], which: int, of: int) -> dict[str, Any]:
    return {**op, "tbg_info": {"tb_id": which, "tbg_size": of}}


@pytest.mark.parametrize("of", [1, 2, 3, 5])
def test_a_group_of_threadblocks_divides_what_it_does(of: int) -> None:
    """All parts one after the other are the whole; without one of them a part of the sums is missing."""
    puts, adds = ([halves(op, part, of) for part in range(of)] for op in (PUT, ADD))
    assert run_plus(sample(*puts, NOP, SIGNAL, WAIT, NOP, *adds, NOP, SIGNAL, WAIT))
    with pytest.raises(VerifyError, match=r"contribution of rank . is missing"):
        run_plus(sample(*puts, NOP, SIGNAL, WAIT, NOP, *adds[1:], NOP, SIGNAL, WAIT))
    with pytest.raises(InputError, match="tb_id below tbg_size"):
        run_plus(sample(*puts, halves(PUT, of, of)))


KNOWN_ELSEWHERE = {
    "relaxed": sample({"name": "rlxsignal", "channel_ids": [0], **BY}, {"name": "rlxwait", "channel_ids": [0], **BY}),
    "reads and adds": sample({"name": "rre", **{k: v for k, v in ADD.items() if k != "name"}}),
    "adds and sends": sample({"name": "rres", **{k: v for k, v in ADD.items() if k != "name"}}),
    "a get": sample({"name": "get", "src_buff": remote(0, 1), "dst_buff": local("i", 0, 1), **BY}),
    "a barrier": sample({"name": "barrier", "barrier_id": 0, "num_threadblocks": 2}),
    "a pipeline": sample({"name": "pipeline", "iter_context": {"unit_size": 1024, "num_chunks": 1}, "ops": [NOP]}),
    "packets": sample({"name": "ppkt", "src_buff": local("i", 0, 1), "dst_buff": remote(0, 1), **BY}),
    "a switch": sample({"name": "glres", "src_buff": [{"switch_channel_id": 0, "index": 0, "size": 1}], **BY}),
    "LL": sample(*EXCHANGE, protocol="LL"),
    "allgather": sample(*EXCHANGE, collective="allgather"),
    "out of place": sample(*EXCHANGE, inplace=False),
    "a semaphore": bent(sample(*EXCHANGE), ("gpus", 0, "semaphores"), [{"init_value": 1}]),
    "a maximum": sample({**ADD, "reduce_op": "max"}),
    "a switch channel": bent(sample(*EXCHANGE), ("gpus", 0, "channels", 0, "channel_type"), "switch"),
    "no output": bent(sample(*EXCHANGE), ("gpus", 1, "output_chunks"), 0),
    "a rounded number": bent(sample(*EXCHANGE), ("gpus", 0, "scratch_chunks"), 2.5),
}
NAMED = {
    "relaxed": "rlxsignal", "reads and adds": "rre", "adds and sends": "rres", "a get": "'get'", "a barrier": "barrier",
    "a pipeline": "pipeline", "packets": "ppkt", "a switch": "glres", "LL": "protocol", "allgather": "allgather",
    "out of place": "in place", "a semaphore": "semaphores", "a maximum": "reduce_op", "a switch channel": "'switch'",
    "no output": "output_chunks", "a rounded number": "2.5",
}  # fmt: skip


@pytest.mark.parametrize("name", KNOWN_ELSEWHERE)
def test_what_is_not_read_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Not "wrong", which would be said with status 1."""
    (tmp_path / "plan.json").write_text(json.dumps(KNOWN_ELSEWHERE[name]))
    done = verified(tmp_path / "plan.json")
    assert done.exit_code == 2
    assert NAMED[name] in done.stderr


def test_no_field_more_is_read_anywhere() -> None:
    """In every object of a plan, one at a time."""
    content = json.loads(plus())
    run_plus(content)
    inner: Any
    for path in [(), *places(content)]:
        inner = content
        for step in path:
            inner = inner[step]
        if isinstance(inner, dict):
            with pytest.raises(InputError, match="later_added"):
                mscclpp_file.load(json.dumps(bent(content, (*path, "later_added"), 0)))


def test_a_channel_serves_an_operation_once() -> None:
    twice = {**WAIT, "channel_ids": [0, 0]}
    with pytest.raises(VerifyError, match="names a channel twice"):
        run_plus(sample(PUT, NOP, SIGNAL, twice, NOP, ADD, NOP, SIGNAL, WAIT))


# ---- other formats --------------------------------------------------------------------------------------------------


def framed(data: bytes) -> bytes:
    """With its length, below 2^14, in front."""
    length = len(data)
    return bytes([length] if length < 128 else [length & 127 | 128, length >> 7]) + data


def test_no_other_attribute_of_a_node_is_read() -> None:
    """Another attribute, one of another type, one twice, another field, and metadata that say more."""
    (content, *_) = chakra.export(plan())
    kinds, nodes = chakra.messages(), chakra.load(content)
    head, rest = content[: content[0] + 1], content[content[0] + 1 :]
    first = kinds["Node"].FromString(rest[1 : rest[0] + 1])
    for change in (
        lambda node: node.attr.add(name="comm_group", int32_val=1),
        lambda node: node.attr.add(name="comm_tag", int32_val=0),
        lambda node: node.attr[1].ClearField("value") or setattr(node.attr[1], "string_val", "8"),
        lambda node: node.MergeFromString(bytes([6 << 3, 1])),  # start_time_micros
    ):
        node = kinds["Node"].FromString(first.SerializeToString())
        change(node)  # type: ignore[no-untyped-call]
        data = node.SerializeToString()
        with pytest.raises(InputError, match="cannot be read"):
            chakra.load(head + framed(data) + rest[rest[0] + 1 :])
    metadata = kinds["GlobalMetadata"].FromString(head[1:])
    metadata.attr.add(name="schema", string_val="other")
    data = metadata.SerializeToString()
    with pytest.raises(InputError, match="nothing else"):
        chakra.load(framed(data) + rest)
    assert chakra.load(head + framed(first.SerializeToString()) + rest[rest[0] + 1 :]) == nodes


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("l0: ", "l0: calc 5\nl0: "),
        ("\n}\n", "\nl1 requires l999\n}\n"),
        ("\n}\n", "\nl999 requires l0\n}\n"),
        ("\n}\n", "\nl0 irequires l1\n}\n"),
        ("// optcc 0 add\n", ""),
        ("rank 1 {", "rank 2 {"),
        ("rank 1 {", "}\nrank 1 {"),
        ("num_ranks 3", "num_ranks 4"),
        ("l1: ", "l0: "),
        ("cpu", "cpu 0 gpu"),
    ],
)
def test_lines_of_goal_that_are_not_known(old: str, new: str) -> None:
    text = goal.export(plan())
    assert old in text
    with pytest.raises(InputError, match="cannot be read"):
        goal.load(text.replace(old, new, 1))
    with pytest.raises(InputError, match="without an end"):
        goal.load(text.rstrip().removesuffix("}"))


# ---- what stands before ---------------------------------------------------------------------------------------------

BANNERS = {
    "a banner": "Loading module {cuda}\n{not JSON\n",
    "a log": '{"level": "info", "gpus": 8}\n',
    "a comment of XML": '<!-- num_ranks 2\n <algo in="a comment">\n{ -->\n',
    "comments": "// a licence\n/* num_ranks 7\n <algo> */\n# more\n",
    "empty lines": "\n\n  \n",
}


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A file of every format that is text."""
    folder = tmp_path_factory.mktemp("exported")
    for name in ("goal", "mscclpp"):
        write(plan(), name, folder / name)
    return {name: (folder / name).read_text() for name in ("goal", "mscclpp")}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("banner", ["", *BANNERS])
def test_what_stands_before_the_content_changes_nothing(
    banner: str, encoding: str, exported: dict[str, str], tmp_path: Path
) -> None:
    for text in exported.values():
        before = BANNERS.get(banner, "")
        path = tmp_path / "file"
        path.write_text(text)
        plain = verified(path)
        assert plain.exit_code == 0
        path.write_text(before + text, encoding=encoding)
        assert verified(path).stdout == plain.stdout


def test_messages_name_the_line_of_the_file(exported: dict[str, str], tmp_path: Path) -> None:
    """Below a banner of three lines, the second line of a rank."""
    lines = exported["goal"].splitlines()
    path = tmp_path / "file"
    path.write_text("\n".join(["a", "b", "c", *lines[:4], "calc 5", *lines[4:]]))
    assert "file:8: cannot be read" in verified(path).stderr


def test_standard_input_may_be_any_of_them(exported: dict[str, str]) -> None:
    for name, text in exported.items():
        done = CliRunner().invoke(main, ["verify", "-"], input=text)
        assert (done.exit_code, "correct" in done.stdout) == (0, True), name
