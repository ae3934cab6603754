"""The libraries of C code, `optcc/liboptcc.so` and `optcc/libnccl-net-optcc.so`; all else is in pyproject.toml."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

NATIVE = Path("native")


class Library(build_ext):
    """Shared libraries of one name for all versions of Python, made by native/build.py."""

    def get_ext_filename(self, fullname: str) -> str:
        return str(Path(*fullname.split("."))) + ".so"

    def build_extension(self, ext: Extension) -> None:
        output = self.get_ext_fullpath(ext.name)
        subprocess.run([sys.executable, str(NATIVE / "build.py"), output], check=True)


class Wheel(bdist_wheel):
    """For any Python 3, on this kind of machine."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


sources = [str(path) for path in sorted(NATIVE.rglob("*")) if path.suffix in (".c", ".h", ".py", ".map")]
sources.append("runtime/devices/kernels/fold.cu")  # the plugin for NCCL has its text in it
setup(
    ext_modules=[Extension(f"optcc.{name}", [], depends=sources) for name in ("liboptcc", "libnccl-net-optcc")],
    cmdclass={"build_ext": Library, "bdist_wheel": Wheel},
)
