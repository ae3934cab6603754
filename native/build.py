"""Compile native/*.c to one shared library: python native/build.py OUTPUT

Where OUTPUT is called libnccl-net-optcc.so, native/nccl/*.c goes in as well, and the source of the GPU's kernel as
text; only the tables for NCCL show.

Any C compiler does, and no header of Python is needed. CC names it, else it is cc, else the one of the package ziglang
where that is installed. CFLAGS are added.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PLUGIN = "libnccl-net-optcc.so"
KERNEL = HERE.parent / "runtime" / "devices" / "kernels" / "fold.cu"
FLAGS = ("-std=c11", "-O3", "-Wall", "-Wextra", "-Wshadow", "-ffp-contract=off", "-fvisibility=hidden", "-fPIC")


def compiler() -> list[str]:
    """The command of a C compiler."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    if shutil.which("cc"):
        return ["cc"]
    if importlib.util.find_spec("ziglang"):
        return [sys.executable, "-m", "ziglang", "cc"]
    sys.exit("no C compiler: install gcc and libc6-dev, or pip install ziglang and set CC='python -m ziglang cc'")


def kernel_in_c() -> str:
    """A file of C that defines the kernel's source as a text, which the plugin compiles where there is a GPU."""
    lines = KERNEL.read_text(encoding="utf-8").splitlines()
    quoted = "\n".join('"' + line.replace("\\", "\\\\").replace('"', '\\"') + '\\n"' for line in lines)
    return f"extern const char optcc_fold_source[];\nconst char optcc_fold_source[] =\n{quoted};\n"


def build(output: Path) -> None:
    """Make the library, whole or not at all. Raises CalledProcessError where the compiler fails."""
    output.parent.mkdir(parents=True, exist_ok=True)
    unfinished, kernel = (output.with_name(f"{output.name}.{os.getpid()}{end}") for end in ("", ".c"))
    flags = [*FLAGS, *shlex.split(os.environ.get("CFLAGS", ""))]
    sources = sorted(str(path) for path in HERE.glob("*.c"))
    if output.name == PLUGIN:
        sources += sorted(str(path) for path in (HERE / "nccl").glob("*.c"))
        # NCCL unloads it with its last communicator, while its thread may still run.
        flags += ["-pthread", "-Wl,-z,nodelete", f"-Wl,--version-script={HERE / 'nccl' / 'exports.map'}"]
        kernel.write_text(kernel_in_c(), encoding="utf-8")
        sources.append(str(kernel))
    try:
        subprocess.run([*compiler(), *flags, "-shared", "-o", str(unfinished), *sources, "-lm", "-ldl"], check=True)
        unfinished.replace(output)
    finally:
        unfinished.unlink(missing_ok=True)
        kernel.unlink(missing_ok=True)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
