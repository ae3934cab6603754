"""MSCCL algorithm files as values, their XML text, and their limits.

Attributes and limits are those of the parser in RCCL up to ROCm 7.0 and msccl-executor-nccl (msccl_parser,
msccl_struct.h), the tighter of the two. All attributes of `algo` are required by one parser or another.
"""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from optcc.errors import InputError
from optcc.export.limits import demand, refuse_above

MAX_STEPS = 64  # steps of a threadblock
MAX_THREADBLOCKS = 64  # of a GPU
MAX_PER_CHANNEL = 32  # threadblocks of a GPU on one channel
MAX_COUNT = 71  # chunks of a step: "less than 72"
MAX_CHANNELS = 32
MAX_NODES = 4096  # XML elements that a rank keeps
MAX_BYTES = 2**40
TYPES = ("s", "r", "rcs", "rrc", "rrs", "rrcs", "re", "cpy", "nop")
SENDS, RECEIVES = ("s", "rcs", "rrs", "rrcs"), ("r", "rcs", "rrc", "rrs", "rrcs")
BUFFERS = ("i", "o", "s")


@dataclass(frozen=True)
class MscclStep:
    """One step. `depid`, `deps`: the threadblock and its step that it waits for, or -1. `hasdep`: others may wait."""

    type: str
    srcbuf: str
    srcoff: int
    dstbuf: str
    dstoff: int
    cnt: int
    depid: int = -1
    deps: int = -1
    hasdep: bool = False


@dataclass(frozen=True)
class MscclThreadblock:
    """What runs one after the other, with at most one peer each way; -1: none."""

    send: int
    recv: int
    chan: int
    steps: tuple[MscclStep, ...]


@dataclass(frozen=True)
class MscclProgram:
    """A whole algorithm, in place on the input buffer. scratch : chunks of scratch per GPU"""

    name: str
    chunks: int
    channels: int
    scratch: tuple[int, ...]
    gpus: tuple[tuple[MscclThreadblock, ...], ...]


def dump(program: MscclProgram) -> str:
    """The XML text of a program."""
    algo = etree.Element(
        "algo",
        name=program.name,
        proto="Simple",
        nchannels=str(program.channels),
        nchunksperloop=str(program.chunks),
        ngpus=str(len(program.gpus)),
        coll="allreduce",
        inplace="1",
        outofplace="0",
        minBytes="0",
        maxBytes=str(MAX_BYTES),
    )
    for number, blocks in enumerate(program.gpus):
        sizes = {"i_chunks": program.chunks, "o_chunks": program.chunks, "s_chunks": program.scratch[number]}
        gpu = etree.SubElement(algo, "gpu", {"id": str(number), **{name: str(size) for name, size in sizes.items()}})
        for i, block in enumerate(blocks):
            tb = etree.SubElement(
                gpu, "tb", id=str(i), send=str(block.send), recv=str(block.recv), chan=str(block.chan)
            )
            for s, step in enumerate(block.steps):
                values = {name: str(getattr(step, name)) for name in MscclStep.__dataclass_fields__ if name != "hasdep"}
                etree.SubElement(tb, "step", {"s": str(s), **values, "hasdep": str(int(step.hasdep))})
    return etree.tostring(algo, pretty_print=True, encoding="unicode")


_ATTRIBUTES = {
    "algo": {"name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace", "outofplace",
             "minBytes", "maxBytes"},
    "gpu": {"id", "i_chunks", "o_chunks", "s_chunks"},
    "tb": {"id", "send", "recv", "chan"},
    "step": {"s", "type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt", "depid", "deps", "hasdep"},
}  # fmt: skip


def load(text: str, where: str = "MSCCL algorithm") -> MscclProgram:
    """Read an algorithm back. Raises InputError for what is not an in-place AllReduce of this form."""
    try:
        algo = etree.fromstring(text, etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True))
        for element in algo.iter():
            known = _ATTRIBUTES.get(str(element.tag))
            demand(known is not None, f"no <{element.tag}>, which is not read here")
            others = {str(name) for name in element.attrib} - (known or set())
            demand(not others, f"no attribute {min(others, default='')} of <{element.tag}>, which is not read here")
        expected = {"coll": "allreduce", "inplace": "1", "outofplace": "0", "proto": "Simple"}
        for name, value in expected.items():
            demand(_get(algo, name) == value, f'{name}="{value}"')
        sizes = 0 <= _number(algo, "minBytes") < _number(algo, "maxBytes")  # parsers refuse a file without them
        demand(sizes, "minBytes from 0 on, below maxBytes")
        gpus = list(algo.iterchildren("gpu"))
        demand([_number(gpu, "id") for gpu in gpus] == list(range(len(gpus))), "GPUs 0, 1, ... in order")
        demand(_number(algo, "ngpus") == len(gpus) > 0, "as many GPUs as ngpus says")
        chunks = _number(algo, "nchunksperloop")
        for gpu in gpus:
            demand(_number(gpu, "i_chunks") == _number(gpu, "o_chunks") == chunks > 0, "nchunksperloop chunks")
        return MscclProgram(
            name=_get(algo, "name"),
            chunks=chunks,
            channels=_number(algo, "nchannels"),
            scratch=tuple(_number(gpu, "s_chunks") for gpu in gpus),
            gpus=tuple(_blocks_in(gpu) for gpu in gpus),
        )
    except (etree.XMLSyntaxError, KeyError, ValueError) as error:
        expected_text = "an MSCCL algorithm"
        raise InputError("cannot be read", where=where, expected=expected_text, got=str(error)[:200]) from None


def _blocks_in(gpu: etree._Element) -> tuple[MscclThreadblock, ...]:
    blocks = list(gpu.iterchildren("tb"))
    demand([_number(tb, "id") for tb in blocks] == list(range(len(blocks))), "threadblocks 0, 1, ... without gaps")
    return tuple(
        MscclThreadblock(_number(tb, "send"), _number(tb, "recv"), _number(tb, "chan"), _steps_in(tb)) for tb in blocks
    )


def _steps_in(tb: etree._Element) -> tuple[MscclStep, ...]:
    steps = list(tb.iterchildren("step"))
    demand([_number(step, "s") for step in steps] == list(range(len(steps))), "steps 0, 1, ... without gaps")
    made = []
    for step in steps:
        kind, src, dst = _get(step, "type"), _get(step, "srcbuf"), _get(step, "dstbuf")
        demand(kind in TYPES, f"a step type of {', '.join(TYPES)}")
        demand(src in BUFFERS and dst in BUFFERS, "buffer i, o or s")
        numbers = {name: _number(step, name) for name in ("srcoff", "dstoff", "cnt", "depid", "deps")}
        made.append(MscclStep(type=kind, srcbuf=src, dstbuf=dst, hasdep=bool(_number(step, "hasdep")), **numbers))
    return tuple(made)


def _get(element: etree._Element, name: str) -> str:
    value = element.get(name)
    if value is None:
        raise KeyError(f'<{element.tag}> has no attribute "{name}"')
    return str(value)


def _number(element: etree._Element, name: str) -> int:
    return int(_get(element, name))


def check_limits(program: MscclProgram) -> None:
    """Raise InputError naming the limit that the parser or the kernel's tables are too small for."""

    refuse_above(MAX_CHANNELS, program.channels, "channels")
    for number, blocks in enumerate(program.gpus):
        for i, block in enumerate(blocks):
            refuse_above(MAX_STEPS, len(block.steps), f"steps in threadblock {i} of GPU {number}")
            for step in block.steps:
                refuse_above(MAX_COUNT, step.cnt, f"chunks in a step of threadblock {i} of GPU {number}")
            refuse_above(program.channels - 1, block.chan, f"channel number of threadblock {i} of GPU {number}")
        refuse_above(MAX_THREADBLOCKS, len(blocks), f"threadblocks of GPU {number}")
        per_channel = [sum(block.chan == c for block in blocks) for c in range(program.channels)]
        refuse_above(MAX_PER_CHANNEL, max(per_channel, default=0), f"threadblocks of GPU {number} on one channel")
        nodes = 2 + len(blocks) + sum(len(block.steps) for block in blocks)
        refuse_above(MAX_NODES, nodes, f"XML elements of GPU {number}")
