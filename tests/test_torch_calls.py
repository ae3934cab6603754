"""The table of calls: it has every call that torch has, the group keeps to it, the docs show it."""

from __future__ import annotations

from typing import Any

import pytest

from optcc.errors import InputError
from tests.test_architecture import ROOT

pytestmark = pytest.mark.torch

NO_CALLS = {
    *("destroy_process_group", "init_process_group", "group", "record_comm"),
    *("get_backend", "get_backend_config", "get_debug_level", "get_default_backend_for_device", "get_global_rank"),
    *("get_group_rank", "get_node_local_rank", "get_pg_count", "get_process_group_ranks", "get_rank"),
    *("get_world_size", "is_backend_available", "is_gloo_available", "is_initialized", "is_mpi_available"),
    *("is_nccl_available", "is_torchelastic_launched", "is_ucc_available", "is_xccl_available"),
    *("default_pg_timeout", "new_group", "new_subgroups", "new_subgroups_by_enumeration", "supports_complex"),
}
"""Of torch.distributed: they make groups or tell of them."""

NO_METHODS = {
    *("abort", "shutdown", "boxed", "unbox", "bound_device_id", "get_group_store", "group_desc", "group_name", "name"),
    *("rank", "size", "set_timeout", "BackendType", "use_pg_for_symm_mem_rendezvous"),
    *("CUSTOM", "GLOO", "MPI", "NCCL", "UCC", "UNDEFINED", "XCCL"),
    *("_backend_id", "_device_types", "_enable_collectives_timing", "_get_backend", "_get_backend_name", "_has_hooks"),
    *("_get_sequence_number_for_group", "_set_sequence_number_for_group", "_id", "_pybind11_conduit_v1_"),
    *("_register_backend", "_register_on_completion_hook", "_set_default_backend", "_set_group_desc"),
    *("_set_group_name", "_wait_for_pending_works"),
}
"""Of a ProcessGroup: they move nothing between ranks."""


def missing(known: Any) -> tuple[set[str], set[str]]:
    """torch's functions and methods that such a table does not name."""
    import torch.distributed as dist

    functions = {n for n in dist.distributed_c10d.__all__ if n[0].islower() and n != "reduce_op"}
    methods = {name for name in dir(dist.ProcessGroup) if not name.startswith("__")}
    return (
        functions - NO_CALLS - {name for call in known for name in call.functions},
        methods - NO_METHODS - {name for call in known for name in call.methods},
    )


def test_every_call_of_torch_is_in_the_table() -> None:
    from optcc.torch_backend.group import CALLS

    assert missing(CALLS) == (set(), set())
    without = [call for call in CALLS if "reduce" not in call.functions]
    assert missing(without) == ({"reduce"}, {"reduce"}), "the control"
    for names in ([n for call in CALLS for n in call.functions], [n for call in CALLS for n in call.methods]):
        assert len(names) == len({*names}), "each once"


def test_the_group_keeps_to_the_table() -> None:
    import torch.distributed as dist

    from optcc.torch_backend.group import CALLS, Delegated, OptccGroup, Way

    asked: list[str] = []

    class Gloo:
        def __getattr__(self, name: str) -> Any:
            return lambda *args: asked.append(name)

    class Bare(OptccGroup):
        """Without any connection."""

        def __init__(self) -> None:
            dist.ProcessGroup.__init__(self, 0, 1)
            self.gloo = Gloo()

    group = Bare()
    for call in CALLS:
        for method in call.methods:
            here = method in vars(OptccGroup)
            assert here == (call.way is Way.OPTCC), method
            assert (method in vars(Delegated)) != here, method
            if call.way is Way.GLOO:
                getattr(group, method)([], 0)
                assert asked.pop() in (method, "alltoall_base")
            elif call.way is Way.REFUSED:
                with pytest.raises(InputError, match=method) as refused:
                    getattr(group, method)()
                assert call.note in str(refused.value)
    assert not asked


def test_the_docs_show_the_table() -> None:
    from optcc.torch_backend.group import table

    page = (ROOT / "docs/pytorch.md").read_text()
    assert "\n".join(table()) in page
