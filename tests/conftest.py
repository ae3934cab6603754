"""What the tests share: random degraded clusters, and hardware that a run may insist on."""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import tempfile
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from optcc.values.cluster import Cluster, Nic, Server
from tests import effort, native_build

CASES = 100
"""Random cases of a test that does not say how many."""

for profile, share in effort.SHARES.items():
    settings.register_profile(
        profile,
        max_examples=CASES // share,
        deadline=None,  # shared machines are noisy: time is measured by benchmarks, not by tests
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.differing_executors],
    )

GBPS = 125_000_000


@st.composite
def clusters(draw: st.DrawFn, min_ranks: int = 3, max_ranks: int = 9, symmetric: bool = True) -> Cluster:
    """Servers with 1 to 3 NICs of unequal rates, some dead, at least one live NIC each way on every server."""
    servers = []
    for s in range(draw(st.integers(min_ranks, max_ranks))):
        nics = []
        for i in range(draw(st.integers(1, 3))):
            out = draw(st.integers(0 if i else 1, 16)) * 25 * GBPS
            into = out if symmetric else draw(st.integers(0 if i else 1, 16)) * 25 * GBPS
            nics.append(Nic(f"nic{i}", Fraction(out), Fraction(into), rail=i))
        servers.append(Server(f"server{s}", tuple(nics)))
    return Cluster(tuple(servers))


@st.composite
def degraded(draw: st.DrawFn, min_ranks: int = 3, max_ranks: int = 12, most: int = 4) -> Cluster:
    """A uniform cluster in which up to `most` servers lost 1/8 to 7/8 of their rate."""
    ranks = draw(st.integers(min_ranks, max_ranks))
    cluster = Cluster.uniform(servers=ranks, nics=1, rate=400 * GBPS)
    for s in draw(st.sets(st.integers(0, ranks - 1), max_size=min(most, ranks - 1))):
        cluster = cluster.degrade(f"server{s}/nic0", Fraction(draw(st.integers(1, 7)), 8))
    return cluster


@pytest.fixture(scope="session")
def lib(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The native engine with virtual wires, compiled once."""
    from tests.native_replay import load

    return load(native_build.build(tmp_path_factory.mktemp("native")))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--require",
        action="append",
        default=[],
        choices=list(_MISSING),
        help="fail, instead of skipping, the tests that need this when it is missing",
    )
    parser.addoption(
        "--long",
        action="store_true",
        help="also the tests that take long, and an eighth of the random cases; else a twentieth",
    )
    parser.addoption("--whole", action="store_true", help="as --long, with all random cases: for a night")


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    # A shell's background jobs ignore it, and so would the programs that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if config.getoption("--hypothesis-seed") is None:
        given = getattr(config, "workerinput", {}).get("hypothesis_seed")
        config.option.hypothesis_seed = given or str(secrets.randbelow(2**32))
    if native_build.KEPT not in os.environ:
        compiled = tempfile.TemporaryDirectory(prefix="optcc-compiled-")
        os.environ[native_build.KEPT] = compiled.name
        config.add_cleanup(compiled.cleanup)
    os.environ.pop("COLUMNS", None)  # what commands print would be wrapped at the width of who runs the tests
    config.option.long |= config.option.whole
    effort.level = "whole" if config.option.whole else "long" if config.option.long else "short"
    settings.load_profile(effort.level)
    config.addinivalue_line("markers", "long: takes long; only `pytest --long`, which `make test-long` calls, runs it")
    config.addinivalue_line("markers", "gpu: needs a CUDA device and cupy")
    config.addinivalue_line("markers", "rdma: needs an RDMA device and libibverbs")
    config.addinivalue_line("markers", "whole: takes long; `make test-verbs` leaves it out without WHOLE=1")
    config.addinivalue_line("markers", "ns3: needs the ns3 wheel and g++, which `make ns3` installs")
    config.addinivalue_line("markers", "cc: needs a C and C++ compiler, which `make test` installs")
    config.addinivalue_line("markers", "torch: needs torch, which `make torch` installs")
    config.addinivalue_line("markers", "ucx: needs UCX's ucx_perftest (Debian's ucx-utils)")
    config.addinivalue_line(
        "markers", "perftest: needs perftest and libibverbs-dev (Debian's), which played NICs are tried with"
    )
    config.addinivalue_line("markers", "prometheus: needs prometheus and promtool (Debian's prometheus)")
    config.addinivalue_line("markers", "coq: needs coqc, which `make proofs` installs")
    config.addinivalue_line("markers", "namespaces: needs root, network namespaces, ip and tc of iproute2")
    config.addinivalue_line("markers", "loggopsim: needs LogGOPSim and its txt2bin, on the path")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All processes of a run draw from the seed that its header tells."""
    node.workerinput["hypothesis_seed"] = node.config.getoption("--hypothesis-seed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def takes_long(item: pytest.Item) -> bool:
        return item.get_closest_marker("long") is not None

    # The dearest files first, so that none holds one worker at the end while the others have nothing to do.
    long, all_tests = Counter(item.path for item in items if takes_long(item)), Counter(item.path for item in items)
    items.sort(key=lambda item: (-long[item.path], -all_tests[item.path]))
    if not config.getoption("--long"):
        config.hook.pytest_deselected(items=[item for item in items if takes_long(item)])
        items[:] = [item for item in items if not takes_long(item)]


def pytest_report_header(config: pytest.Config) -> str:
    seed = config.getoption("--hypothesis-seed")
    return f"random clusters from --hypothesis-seed={seed} (give it again to see the same ones)"


# What a test may be skipped for: hardware, or programs that are no Python packages, which whoever tries the suite need
# not have. CI requires the programs, and runs the RDMA tests in the lab; docs/hardware.md has the runs on GPUs.
_MISSING = {
    "gpu": "no cupy with a CUDA device (pip install '.[gpu]' where there is one; docs/hardware.md: past runs)",
    "rdma": "no libibverbs with an RDMA device (LAB=1 make test-verbs runs these on emulated ones)",
    "coq": "no coqc (make proofs installs it)",
    "cc": "no cc or no g++ (apt-get install g++)",
    "torch": "no torch (make torch installs it)",
    "perftest": "no perftest or no infiniband/verbs.h (apt-get install perftest libibverbs-dev)",
    "ucx": "no ucx_perftest (apt-get install ucx-utils), or no /sys, without which UCX aborts",
    "prometheus": "no prometheus or no promtool (tools/programs.sh .venv prometheus unpacks Debian's)",
    "namespaces": "no root, no network namespaces, or no ip or tc (apt-get install iproute2)",
    "loggopsim": "no LogGOPSim or no txt2bin on the path (github.com/spcl/LogGOPSim)",
    "ns3": "no ns-3 wheel or no g++ (make ns3 installs them)",
}


def _present(hardware: str) -> bool:
    if hardware == "coq":
        return shutil.which("coqc") is not None
    if hardware == "loggopsim":
        return all(map(shutil.which, ("LogGOPSim", "txt2bin")))
    if hardware == "cc":
        return all(map(shutil.which, ("cc", "g++")))
    if hardware == "perftest":
        return shutil.which("ib_write_bw") is not None and os.path.exists("/usr/include/infiniband/verbs.h")
    if hardware == "ucx":
        return shutil.which("ucx_perftest") is not None and os.path.exists("/sys/class")
    if hardware == "prometheus":
        from tools.prometheus import program

        return all(map(program, ("prometheus", "promtool")))
    if hardware == "torch":
        return importlib.util.find_spec("torch") is not None
    if hardware == "namespaces":
        from tests.namespaces import missing as lacking

        return not lacking()
    if hardware == "ns3":
        from tests.packet_level import missing

        return missing() is None
    if hardware == "gpu":
        if importlib.util.find_spec("cupy") is None:
            return False
        import cupy

        return bool(cupy.cuda.is_available())
    from optcc.cli.doctor import examine
    from optcc.machine.rdma import can_load

    return can_load() and any(f.present for f in examine() if f.part.startswith("RDMA "))


def pytest_runtest_setup(item: pytest.Item) -> None:
    for hardware, missing in _MISSING.items():
        if item.get_closest_marker(hardware) and not _present(hardware):
            if hardware in item.config.getoption("--require"):
                pytest.fail(f"--require={hardware}: {missing}")
            pytest.skip(f"{missing}; --require={hardware} fails instead")
