"""A process group whose collectives go by a communicator."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist

from optcc.communicator import Communicator
from optcc.torch_backend.delegated import Delegated
from optcc.torch_backend.options import NAME
from optcc.torch_backend.tensors import HostArray, op_of
from optcc.torch_backend.work import CallWork, finished


class OptccGroup(Delegated):
    """A process group of torch's, with the methods that its collectives call.

    communicator : what they go by, for its `events` and `strike`
    gloo : a Gloo group of the same ranks, for what the communicator has no schedule or no type for
    store : of torch's, by which the ranks have found each other
    """

    def __init__(self, communicator: Communicator, gloo: Any, store: Any) -> None:
        super().__init__(communicator.rank, communicator.world, gloo)
        self.communicator, self.store = communicator, store

    # --- collectives, see `calls` ------------------------------------------------------------------------------------

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
