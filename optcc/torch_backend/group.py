"""A process group whose collectives go by a communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from typing import Any

import torch
import torch.distributed as dist

from optcc.communicator import Communicator
from optcc.errors import InputError
from optcc.torch_backend.options import NAME, devices

# Which way each call of torch.distributed goes in a group of this backend. docs/pytorch.md shows this table.


class Way(StrEnum):
    """Of a call."""

    OPTCC = "optcc"
    """By the communicator: it survives a NIC."""
    GLOO = "Gloo"
    """By a Gloo group beside it, which does not."""
    REFUSED = "refused"
    """InputError, with what to call instead."""


@dataclass(frozen=True)
class Call:
    """One row of the table.

    functions : of torch.distributed; methods : of its ProcessGroup, which they call
    note : what of it goes another way; for a refused call, what to call instead
    """

    functions: tuple[str, ...]
    methods: tuple[str, ...]
    way: Way
    note: str = ""


REDUCED = "Bitwise operations, bool, and min, max and product of complex numbers go by Gloo"

CALLS = (
    Call(
        ("all_reduce", "all_reduce_coalesced"),
        ("allreduce", "allreduce_coalesced"),
        Way.OPTCC,
        f"{REDUCED}, and so do sparse tensors",
    ),
    Call(("broadcast", "broadcast_object_list"), ("broadcast",), Way.OPTCC),
    Call(("barrier",), ("barrier",), Way.OPTCC),
    Call(
        ("all_gather", "all_gather_object", "all_gather_coalesced"),
        ("allgather", "allgather_coalesced"),
        Way.OPTCC,
        "Tensors of unequal sizes go by Gloo",
    ),
    Call(
        ("all_gather_into_tensor", "all_gather_single"),
        (
            *("all_gather_single", "_allgather_base"),
            *("all_gather_single_coalesced", "allgather_into_tensor_coalesced"),
        ),
        Way.OPTCC,
    ),
    Call(("reduce_scatter",), ("reduce_scatter",), Way.OPTCC, f"{REDUCED}, and so do parts of unequal sizes"),
    Call(
        ("reduce_scatter_tensor", "reduce_scatter_single"),
        (
            *("reduce_scatter_single", "_reduce_scatter_base"),
            *("reduce_scatter_single_coalesced", "reduce_scatter_tensor_coalesced"),
        ),
        Way.OPTCC,
        REDUCED,
    ),
    Call(("reduce",), ("reduce",), Way.GLOO),
    Call(("gather", "gather_object"), ("gather",), Way.GLOO),
    Call(("scatter", "scatter_object_list"), ("scatter",), Way.GLOO),
    Call(("all_to_all",), ("alltoall",), Way.GLOO, "Gloo has it for tensors of one shape"),
    Call(
        ("all_to_all_single",),
        ("all_to_all_single", "alltoall_base"),
        Way.OPTCC,
        "With split sizes it goes by Gloo",
    ),
    Call(("send", "isend", "batch_isend_irecv", "send_object_list"), ("send",), Way.GLOO),
    Call(("recv", "irecv", "recv_object_list"), ("recv", "recv_anysource"), Way.GLOO),
    Call(
        ("monitored_barrier",),
        ("monitored_barrier",),
        Way.REFUSED,
        "Call barrier: when a rank does not come, its error names the rank. torch refuses it for all backends but gloo",
    ),
    Call(
        ("shrink_group",),
        (),
        Way.REFUSED,
        "Call optcc.pytorch.shrink after RankFailedError. torch refuses it for all backends but its own",
    ),
    Call(("split_group",), ("split_group", "merge_remote_group"), Way.REFUSED, "Call new_group"),
    Call(
        (),
        ("_start_coalescing", "_end_coalescing"),
        Way.REFUSED,
        "Leave `device` out of the coalescing manager",
    ),
)
"""Every call once."""


def table() -> list[str]:
    """CALLS as lines of Markdown."""
    lines = ["| call | goes by | |", "|---|---|---|"]
    for call in CALLS:
        names = ", ".join(f"`{name}`" for name in call.functions or call.methods)
        lines.append(f"| {names} | {call.way} | {call.note} |")
    return lines


# The calls of a group that do not go by its communicator: to Gloo, or refused by name, as `CALLS` says.


class Delegated(dist.ProcessGroup):  # type: ignore[misc]
    """A process group that has these calls; a subclass has the others.

    gloo : torch's Gloo group of the same ranks
    """

    def __init__(self, rank: int, world: int, gloo: Any) -> None:
        super().__init__(rank, world)
        self.gloo = gloo
        # torch keeps the group's name and sequence number there, and asks it what the group can do besides.
        for device in devices():
            self._register_backend(torch.device(device), dist.ProcessGroup.BackendType.GLOO, gloo)
        self._set_default_backend(dist.ProcessGroup.BackendType.GLOO)


def _to_gloo(method: str) -> Callable[..., Any]:
    def call(self: Delegated, *args: Any, **named: Any) -> Any:
        return getattr(self.gloo, method)(*args, **named)

    return call


def _refused(method: str, call: Call) -> Callable[..., Any]:
    def refuse(self: Delegated, *args: Any, **named: Any) -> Any:
        raise InputError(f"{method} is not a call of this backend", where=NAME, hint=f"{call.note}.")

    return refuse


for _call in CALLS:
    for _method in _call.methods:
        if _call.way is Way.GLOO:
            setattr(Delegated, _method, _to_gloo(_method))
        elif _call.way is Way.REFUSED:
            setattr(Delegated, _method, _refused(_method, _call))


# Tensors as the arrays that a communicator takes, and torch's operations by the communicator's names.

_OPS = {
    dist.ReduceOp.SUM: "sum",
    dist.ReduceOp.AVG: "avg",
    dist.ReduceOp.PRODUCT: "prod",
    dist.ReduceOp.MIN: "min",
    dist.ReduceOp.MAX: "max",
}

_TYPES = {
    *(torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.float64),
}
"""Types that the communicator reduces; any other is moved as bytes, and reduced by Gloo."""

_COMPLEX = {torch.complex64, torch.complex128}
"""Summed as pairs of real numbers."""


def op_of(opts: Any, tensors: Sequence[torch.Tensor]) -> str | None:
    """The communicator's name of an operation on these tensors; None: Gloo has to do it.

    opts : torch's options of the call, which have a `reduceOp`
    """
    name = _OPS.get(opts.reduceOp.op if hasattr(opts.reduceOp, "op") else opts.reduceOp)
    whole = all(t.dtype in _TYPES or (t.dtype in _COMPLEX and name in ("sum", "avg")) for t in tensors)
    return name if whole and not any(t.is_sparse for t in tensors) else None


class HostArray:
    """A tensor as an array that the communicator takes: its own memory, or a copy where that is not on the host or has
    gaps.

    as_bytes : only moved, whatever its type

    Raises InputError for a sparse tensor and for a view that is conjugated or negated lazily.
    """

    def __init__(self, tensor: torch.Tensor, as_bytes: bool = False) -> None:
        tensor = tensor.detach()
        if tensor.is_sparse:
            raise InputError("a sparse tensor", where=NAME, expected="dense tensors", hint="Use the backend gloo.")
        if tensor.is_conj() or tensor.is_neg():
            raise InputError("a conjugated view", where=NAME, hint="Give tensor.resolve_conj().resolve_neg().")
        self._tensor, host = tensor, tensor
        self.copied = tensor.device.type != "cpu" or not tensor.is_contiguous()
        if self.copied:
            host = tensor.to("cpu", memory_format=torch.contiguous_format, copy=True)
        self._host = host
        flat = host.view(-1)
        if as_bytes:
            flat = flat.view(torch.uint8)
        elif flat.dtype in _COMPLEX:
            flat = torch.view_as_real(flat).view(-1)
        self.array = flat

    def back(self) -> None:
        """Into the tensor, where it is a copy."""
        if self.copied:
            self._tensor.copy_(self._host)

    def part_from(self, other: HostArray) -> None:
        """Become a copy where both share memory: torch's users may gather in place, into what holds the input."""
        one, two = self.array, other.array
        if one.data_ptr() < two.data_ptr() + two.nbytes and two.data_ptr() < one.data_ptr() + one.nbytes:
            self.array = one.clone()


# What a call gives to torch: something to wait for, which raises what the call has raised.


class CallWork(dist.Work):  # type: ignore[misc]
    """Of one call.

    done : of the communicator's last operation for it; result : torch's, a tensor or a list
    """

    def __init__(self, done: Future[Any], result: Any) -> None:
        super().__init__()
        self._done, self._result = done, result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        """Until it is done. Raises RankFailedError, or TimeoutError after a `timeout` other than 0, or the group's."""
        self._done.result(timeout.total_seconds() or None)
        return True

    def is_completed(self) -> bool:
        """Whether it has ended."""
        return self._done.done()

    def is_success(self) -> bool:
        """Whether it has ended well."""
        return self._done.done() and self._done.exception() is None

    def result(self) -> Any:
        """Of the call, once it is done."""
        self.wait()
        return self._result

    def get_future(self) -> Any:
        """For torch's C++ (DDP): there an error is a RuntimeError with the text."""
        ended: torch.futures.Future[Any] = torch.futures.Future()

        def outcome(_: Any) -> Any:
            error = self._done.exception()
            if error is not None:  # what is raised in here, and nothing else, is an error for C++, too
                raise error.with_traceback(None) from None
            return self._result

        told = ended.then(outcome)
        self._done.add_done_callback(lambda _: ended.set_result(None))
        return told


def finished(result: Any) -> CallWork:
    """Of a call that is over."""
    done: Future[Any] = Future()
    done.set_result(None)
    return CallWork(done, result)


# The group


class OptccGroup(Delegated):
    """A process group of torch's, with the methods that its collectives call.

    communicator : what they go by, for its `events` and `strike`
    gloo : a Gloo group of the same ranks, for what the communicator has no schedule or no type for
    transport : of the communicator; timeout : for a call, of Gloo's too
    """

    def __init__(self, communicator: Communicator, gloo: Any, transport: str, timeout: timedelta) -> None:
        super().__init__(communicator.rank, communicator.world, gloo)
        self.communicator, self.transport, self.timeout = communicator, transport, timeout

    # --- collectives, see `CALLS` ------------------------------------------------------------------------------------

    def allreduce(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Each in place."""
        opts = opts or dist.AllreduceOptions()
        return self._reduced(tensors, opts) or self.gloo.allreduce(tensors, opts)

    def allreduce_coalesced(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Each in place."""
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._reduced(tensors, opts) or self.gloo.allreduce_coalesced(tensors, opts)

    def broadcast(self, tensors: Sequence[torch.Tensor], opts: Any = None) -> Any:
        """Each from `opts.rootRank`."""
        root = opts.rootRank if opts else 0
        moves = [HostArray(tensor, as_bytes=True) for tensor in tensors]
        return self._done(
            [
                lambda now, m=move: self.communicator.broadcast(m.array, root, async_op=not now)  # type: ignore[misc]
                for move in moves
            ],
            moves,
            tensors,
            _waits(opts),
        )

    def barrier(self, opts: Any = None) -> Any:
        """All ranks are here."""
        return self._done([lambda now: self.communicator.barrier(async_op=not now)], [], [], _waits(opts))

    def allgather(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Every rank's input into each list of outputs, by rank."""
        for into, tensor in zip(outputs, inputs, strict=True):
            if any(out.numel() != tensor.numel() for out in into):
                return self.gloo.allgather(outputs, inputs)
        wholes = [torch.empty((self.size(), *tensor.shape), dtype=tensor.dtype) for tensor in inputs]
        for whole, tensor in zip(wholes, inputs, strict=True):
            self.all_gather_single(whole, tensor).wait()
        for whole, into in zip(wholes, outputs, strict=True):
            for rank, out in enumerate(into):
                out.copy_(whole[rank].view(out.shape))
        return finished(list(outputs))

    def allgather_coalesced(
        self, outputs: Sequence[Sequence[torch.Tensor]], inputs: Sequence[torch.Tensor], opts: Any = None
    ) -> Any:
        """Every rank's inputs into the outputs, a list for each rank."""
        return self.allgather([list(of_input) for of_input in zip(*outputs, strict=True)], inputs)

    def all_gather_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        """Every rank's tensor into `output`, one after the other."""
        own, whole = HostArray(tensor, as_bytes=True), HostArray(output, as_bytes=True)
        own.part_from(whole)
        call = lambda now: self.communicator.all_gather(own.array, whole.array, async_op=not now)  # noqa: E731
        return self._done([call], [whole], output, _waits(opts))

    _allgather_base = all_gather_single

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Several of these."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.all_gather_single(output, tensor).wait()
        return finished(list(outputs))

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def reduce_scatter(
        self, outputs: Sequence[torch.Tensor], inputs: Sequence[Sequence[torch.Tensor]], opts: Any = None
    ) -> Any:
        """Of each list of inputs, all ranks' number `rank` reduced into the output."""
        for output, parts in zip(outputs, inputs, strict=True):
            if any(part.numel() != output.numel() for part in parts):
                return self.gloo.reduce_scatter(outputs, inputs, opts)
            self.reduce_scatter_single(output, torch.stack([part.reshape(-1) for part in parts]), opts).wait()
        return finished(list(outputs))

    def reduce_scatter_single(self, output: torch.Tensor, tensor: torch.Tensor, opts: Any = None) -> Any:
        """Of `tensor`, all ranks' part number `rank` reduced into `output`."""
        opts = opts or dist.ReduceScatterOptions()
        op = op_of(opts, [tensor])
        if op is None:
            parts = list(tensor.reshape(-1).chunk(self.size()))
            return self.gloo.reduce_scatter([output.view(-1)], [parts], opts)
        whole, own = HostArray(tensor), HostArray(output)
        whole.part_from(own)
        call = lambda now: self.communicator.reduce_scatter(whole.array, own.array, op, async_op=not now)  # noqa: E731
        return self._done([call], [own], output, _waits(opts))

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = None) -> Any:
        """Several of these."""
        for output, tensor in zip(outputs, inputs, strict=True):
            self.reduce_scatter_single(output, tensor, opts).wait()
        return finished(list(outputs))

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def all_to_all_single(
        self,
        output: torch.Tensor,
        tensor: torch.Tensor,
        output_splits: Sequence[int],
        input_splits: Sequence[int],
        opts: Any = None,
    ) -> Any:
        """Of `tensor`, equal part number r to rank r; with split sizes, which other ranks do not know, by Gloo."""
        if output_splits or input_splits:
            return self.gloo.alltoall_base(output, tensor, output_splits, input_splits)
        own, into = HostArray(tensor, as_bytes=True), HostArray(output, as_bytes=True)
        own.part_from(into)
        call = lambda now: self.communicator.all_to_all(own.array, into.array, async_op=not now)  # noqa: E731
        return self._done([call], [into], output, _waits(opts))

    alltoall_base = all_to_all_single

    # --- what torch asks of a group besides --------------------------------------------------------------------------

    def getBackendName(self) -> str:  # noqa: N802 - torch's name
        """Of the backend."""
        return NAME

    def shutdown(self) -> None:
        """All ranks, together."""
        self.communicator.close()

    def abort(self) -> None:
        """This rank leaves, and all others fail."""
        self.communicator.abort("aborted")

    # --- how it is done ----------------------------------------------------------------------------------------------

    def _reduced(self, tensors: Sequence[torch.Tensor], opts: Any) -> Any:
        op = op_of(opts, tensors)
        if op is None:
            return None
        moves = [HostArray(tensor) for tensor in tensors]
        calls = [lambda now, m=move: self.communicator.all_reduce(m.array, op, async_op=not now) for move in moves]
        return self._done(calls, moves, list(tensors), _waits(opts))

    def _done(
        self, calls: Sequence[Callable[[bool], Any]], moves: Sequence[HostArray], result: Any, waits: bool
    ) -> Any:
        """The work of calls in a row; at once where the caller waits for it or something has to be copied back."""
        if waits or any(move.copied for move in moves) or not calls:
            for call in calls:
                call(True)
            for move in moves:
                move.back()
            return finished(result)
        return CallWork([call(False) for call in calls][-1].future, result)


def _waits(opts: Any) -> bool:
    """Whether the caller waits for the work at once."""
    return opts is not None and not getattr(opts, "asyncOp", True)
