"""Where the operations of an MSCCL++ plan read and write: buffers resolved, and cut into pieces."""

from __future__ import annotations

from collections.abc import Iterator

from optcc.errors import VerifyError
from optcc.export.clocks import BufferPieces
from optcc.export.mscclpp_file import ChunkSpan, MscclppOp, MscclppProgram

SHAPES = {  # name -> how many sources, and whether the destination is remote
    "put": (1, True),
    "pws": (1, True),
    "copy": (1, False),
    "re": (2, False),
}
Place = tuple[int, str]
"""A buffer: rank, and "i" or "s". In place, the output is the input."""


def op_name(r: int, t: int, op: MscclppOp) -> str:
    """How messages call an operation."""
    return f"{op.name} in threadblock {t} of rank {r}"


def where(program: MscclppProgram, r: int, t: int, op: MscclppOp, span: ChunkSpan) -> Place:
    """The buffer of a span of an operation. Raises VerifyError for a remote buffer that it cannot reach."""
    if span.remote is None:
        kind = span.local or ""
        return r, "i" if kind == "o" else kind
    refs = program.gpus[r].threadblocks[t].buffers.get(op.channel_type or "", ())
    if not 0 <= span.remote < len(refs) or not 0 <= refs[span.remote] < len(program.gpus[r].remotes):
        raise VerifyError(f"{op_name(r, t, op)} names a remote buffer that its threadblock does not have")
    remote = program.gpus[r].remotes[refs[span.remote]]
    if op.channel_type not in remote.types or not 0 <= remote.rank < len(program.gpus):
        raise VerifyError(f"{op_name(r, t, op)} reaches a remote buffer that it has no access to")
    return remote.rank, "i" if remote.kind == "o" else remote.kind


def memories(program: MscclppProgram) -> dict[Place, BufferPieces]:
    """All buffers, inputs with their rank's own bytes in them, cut wherever an operation needs a cut."""
    sizes: dict[Place, int] = {}
    for r, gpu in enumerate(program.gpus):
        sizes[r, "i"] = gpu.chunks
        if gpu.scratch:
            sizes[r, "s"] = gpu.scratch
    cuts = {place: {0, size} for place, size in sizes.items()}
    joined = list(_data(program))
    for spans in joined:
        for place, span in spans:
            cuts.get(place, set()).update((span.start, span.start + span.count))
    # What an operation joins is cut at the same places, counted from the start of each span.
    moved = True
    while moved:
        moved = False
        for spans in joined:
            if any(place not in cuts for place, _ in spans):
                continue  # the interpreter will say so
            inner = {c - span.start for place, span in spans for c in cuts[place] if 0 < c - span.start < span.count}
            for place, span in spans:
                wanted = {c + span.start for c in inner} - cuts[place]
                cuts[place] |= wanted
                moved = moved or bool(wanted)
    return {
        (r, kind): BufferPieces(
            f"the {'input' if kind == 'i' else 'scratch'} of rank {r}",
            (cut for cut in cuts[r, kind] if 0 <= cut <= size),
            r if kind == "i" else None,
        )
        for (r, kind), size in sizes.items()
    }


def _data(program: MscclppProgram) -> Iterator[list[tuple[Place, ChunkSpan]]]:
    """The spans of every operation that moves data."""
    for r, gpu in enumerate(program.gpus):
        for t, block in enumerate(gpu.threadblocks):
            for op in block.ops:
                if op.name in SHAPES:
                    yield [(where(program, r, t, op, span), span) for span in (*op.src, *op.dst)]
