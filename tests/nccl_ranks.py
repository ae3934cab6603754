"""Ranks that play NCCL (tests/nccl_harness.c) over loopback addresses or network namespaces, whose NICs are cut."""

from __future__ import annotations

import os
import random
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests import native_build
from tests.native_build import LOOSE, Mutant

ROOT = Path(__file__).resolve().parent.parent
HARNESS = ROOT / "tests" / "nccl_harness.c"
WARNINGS = ("-std=c11", "-Wall", "-Wextra", "-Wshadow", "-Werror")
LIMIT_S = 280


@dataclass(frozen=True)
class Build:
    """A plugin and the harness that fits it."""

    plugin: Path
    harness: Path

    @classmethod
    def make(cls, folder: Path, native: Path = ROOT / "native", flags: str = "-O2 -Werror") -> Build:
        """Compile both; a warning is a failure."""
        plugin, harness = folder / "libnccl-net-optcc.so", folder / "harness"
        env = {**os.environ, "CFLAGS": flags}
        subprocess.run([sys.executable, str(native / "build.py"), str(plugin)], check=True, env=env, timeout=300)
        command = ["cc", *WARNINGS, *flags.split(), f"-I{native}", str(HARNESS), "-o", str(harness), "-ldl", "-pthread"]
        subprocess.run(command, check=True, timeout=300)
        return cls(plugin, harness)

    @classmethod
    def wrong(cls, folder: Path, *mutants: Mutant) -> Build:
        """From other sources, with bugs for example; what they leave alone is compiled once."""
        native, harness = native_build.planted(folder, *mutants), folder / "harness"
        script = native / "nccl" / "exports.map"
        link = ("-pthread", "-Wl,-z,nodelete", f"-Wl,--version-script={script}")
        kernel = folder / "kernel.c"
        kernel.write_text(runpy.run_path(str(ROOT / "native" / "build.py"))["kernel_in_c"](), encoding="utf-8")
        plugin = native_build.build(folder, native, LOOSE, [*sorted((native / "nccl").glob("*.c")), kernel], link)
        objects = native_build.compiled([HARNESS], native, (*WARNINGS, *LOOSE))
        subprocess.run(["cc", *objects, "-o", str(harness), "-ldl", "-pthread"], check=True, timeout=300)
        return cls(plugin, harness)


def played_cuda(build: Build, flags: str = "-O2") -> dict[str, str]:
    """The environment in which a plugin, and the harness that plays launches, find CUDA: tests/played_cuda.c."""
    folder, native = build.harness.parent / "cuda", ROOT / "native"
    if not folder.exists():
        made = Path(tempfile.mkdtemp(dir=build.harness.parent))
        sources = [
            ROOT / "tests" / "played_cuda.c",
            *(native / f"{name}.c" for name in ("folder_gpu", "reduce", "program")),
        ]
        command = [
            "cc",
            *WARNINGS,
            *flags.split(),
            f"-I{native}",
            "-fvisibility=hidden",
            "-fPIC",
            "-shared",
            "-pthread",
        ]
        command += ["-Wl,-soname,libcuda.so.1", *map(str, sources), "-o", str(made / "libcuda.so.1"), "-lm"]
        subprocess.run(command, check=True, timeout=300)
        shutil.copy(made / "libcuda.so.1", made / "libnvrtc.so.13")
        with suppress(OSError):  # another process was faster
            made.rename(folder)
    return {
        "LD_LIBRARY_PATH": str(folder),
        "HARNESS_LAUNCHES": "all",
        "OPTCC_COLLNET": "always",
        "OPTCC_COLLNET_BYTES": "1",
    }


def sanitizing(sanitizers: str) -> str:
    """Flags. At -O1 the compiler takes 16 s of processor time with these, at -O0 6.5."""
    return f"-O0 -g -fsanitize={sanitizers} -fno-sanitize-recover=all"


def shared_build(sanitizers: str = "") -> Build:
    """The plugin as it is, compiled once for all test files of a run, and all of its processes."""
    folder = native_build.kept() / f"nccl-{sanitizers.replace(',', '-')}"
    folder.mkdir(exist_ok=True)
    build = Build(folder / "libnccl-net-optcc.so", folder / "harness")
    with native_build.missing(build.harness) as wanted:
        return Build.make(folder, flags=sanitizing(sanitizers) if sanitizers else "-O2 -Werror") if wanted else build


@dataclass
class Outcome:
    """What ranks said. told : their last lines; logged : what the plugin logged, by rank"""

    codes: list[int]
    told: list[str]
    logged: list[str]
    cuts: int = field(default=0)

    @property
    def fault(self) -> str:
        """What is wrong with a run that should have ended well; empty: nothing."""
        bad = [
            f"rank {rank} ended with {code}: {told or 'nothing'}\n{logged[-3000:]}"
            for rank, (code, told, logged) in enumerate(zip(self.codes, self.told, self.logged, strict=True))
            if code != 0 or not told.startswith("right")
        ]
        return "\n".join(bad)

    @property
    def unsound(self) -> str:
        """Likewise, with what sanitizers have found."""
        found = re.search("Sanitizer|runtime error", "\n".join(self.logged))
        return self.fault or (found[0] if found else "")


@dataclass
class Ranks:
    """Processes of a run; `with` ends those that are left."""

    build: Build
    nics: Sequence[str]  # by rank, as OPTCC_NICS has them
    version: int = 12
    seed: int = 1
    messages: int = 40
    connections: int = 2
    cuts: int = 0
    calls: int = 0  # of CollNet, in place of messages
    env: dict[str, str] = field(default_factory=dict)
    prefix: Sequence[Sequence[str]] = ()  # of each rank's command

    def __enter__(self) -> Ranks:
        self.folder = Path(tempfile.mkdtemp(prefix="optcc-ranks-"))
        self.processes = []
        self._logs = []
        for rank, nics in enumerate(self.nics):
            log = (self.folder / f"log.{rank}").open("w+", encoding="utf-8")
            self._logs.append(log)
            arguments = [self.version, rank, len(self.nics), self.folder, self.seed]
            arguments += [self.messages, self.connections, self.cuts, *[self.calls][: bool(self.calls)]]
            command = [str(self.build.harness), str(self.build.plugin), *map(str, arguments)]
            env = {**os.environ, "OPTCC_NICS": nics, "OPTCC_CONNECT_S": "100", **self.env}
            prefix = self.prefix[rank] if self.prefix else ()
            started = subprocess.Popen([*prefix, *command], stdout=subprocess.PIPE, stderr=log, text=True, env=env)
            self.processes.append(started)
        return self

    def __exit__(self, *_: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
            assert process.stdout
            process.stdout.close()
        for log in self._logs:
            log.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def outcome(self) -> Outcome:
        """Wait for all of them. The harness ends itself when it takes too long."""
        told = [process.communicate(timeout=LIMIT_S)[0].strip() for process in self.processes]
        logged = []
        for log in self._logs:
            log.seek(0)
            logged.append(log.read())
        last = [one.splitlines()[-1] if one else "" for one in told]
        cut = sum(int(one.split()[1]) for one in last if one.startswith("right"))
        return Outcome([process.returncode for process in self.processes], last, logged, cut)


def loopback(ranks: int, nics: int = 2) -> list[str]:
    """Addresses of loopback as NICs: 127.0.RANK.NIC."""
    return [",".join(f"127.0.{rank + 1}.{nic + 2}" for nic in range(nics)) for rank in range(ranks)]


def run(build: Build, nics: Sequence[str], **more: object) -> Outcome:
    with Ranks(build, nics, **more) as ranks:  # type: ignore[arg-type]
        return ranks.outcome()


REMOTE_ERROR = 6
"""ncclRemoteError"""


def killed(build: Build, begun: str, **more: int) -> Outcome:
    """Three ranks, of which rank 1 is killed once all have logged that they have begun: the others return an error."""
    with Ranks(build, loopback(3), env={"OPTCC_RETURN_S": "2"}, **more) as ranks:
        for rank in range(3):
            while begun not in (ranks.folder / f"log.{rank}").read_text(encoding="utf-8"):
                time.sleep(0.01)
        ranks.processes[1].kill()
        outcome = ranks.outcome()
    assert outcome.codes[0] == outcome.codes[2] == 1
    for told in (outcome.told[0], outcome.told[2]):
        assert f"returned {REMOTE_ERROR}" in told
    return outcome


# --- network namespaces --------------------------------------------------------------------------------------------


def ip(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ip", *arguments], check=check, capture_output=True, text=True, timeout=30)


@contextmanager
def namespaces(ranks: int, rails: int = 2, device: str = "r") -> Iterator[list[str]]:
    """A namespace for each rank, with a NIC on each rail: r0, r1, ...; and one for the switches, which comes last."""
    mark = f"oc{os.getpid() % 100000}"
    names = [f"{mark}n{rank}" for rank in range(ranks)] + [f"{mark}s"]
    switch = names[-1]
    try:
        for name in names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for rail in range(rails):
            ip("-n", switch, "link", "add", f"b{rail}", "type", "bridge")
            ip("-n", switch, "link", "set", f"b{rail}", "up")
            for rank in range(ranks):
                near, far = f"{device}{rail}", f"v{rank}r{rail}"
                ip("-n", switch, "link", "add", "name", far, "type", "veth", "peer", "name", near, "netns", names[rank])
                ip("-n", switch, "link", "set", far, "master", f"b{rail}", "up")
                ip("-n", names[rank], "address", "add", f"10.77.{rail}.{rank + 1}/24", "dev", near)
                ip("-n", names[rank], "link", "set", near, "up")
        yield names
    finally:
        for name in names:
            ip("netns", "del", name, check=False)


class Cables:
    """Pulls cables of one rail and puts them back, again and again, at moments from a seed, until `stop`. So the other
    rails reach everybody."""

    def __init__(self, switch: str, ranks: int, rails: int, seed: int) -> None:
        self.pulled = 0
        self._switch, self._ranks, self._rails = switch, ranks, rails
        self._draw = random.Random(seed)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            rail = self._draw.randrange(self._rails)
            cables = [f"v{rank}r{rail}" for rank in range(self._ranks) if self._draw.random() < 0.6]
            for cable in cables:
                ip("-n", self._switch, "link", "set", cable, "down")
                self.pulled += 1
            self._stop.wait(self._draw.choice((0.02, 0.3, 1.0)))
            for cable in cables:
                ip("-n", self._switch, "link", "set", cable, "up")
            self._stop.wait(self._draw.choice((0.05, 0.6)))

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()
