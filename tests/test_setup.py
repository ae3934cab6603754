"""What `make demo` and `make test` install, and what set-up says while it does."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml

import optcc

ROOT = Path(__file__).resolve().parent.parent
SMALL, LARGE = ROOT / "requirements.lock", ROOT / "requirements-dev.lock"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def locked(lock: Path) -> dict[str, str]:
    """Each line that pins a package -> the hashes below it."""
    pins = re.split(r"^(?=[a-z0-9])", lock.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    return {pin.splitlines()[0]: pin.partition("--hash=")[2] for pin in pins}


def names(lock: Path) -> set[str]:
    return {pin.partition("==")[0] for pin in locked(lock)}


def needs(wanted: list[str]) -> set[str]:
    """Names of packages as a lock writes them."""
    return {re.split(r"[<>=]", one)[0].lower() for one in wanted}


def test_the_locks_name_the_same_versions_each_with_its_hashes() -> None:
    small, large = locked(SMALL), locked(LARGE)
    assert all("==" in pin and hashes for pin, hashes in (small | large).items())
    assert small.keys() - large.keys() == set(), "make lock"


def test_the_small_lock_is_what_optcc_needs_and_no_tests() -> None:
    extras = PROJECT["optional-dependencies"]
    assert needs(PROJECT["dependencies"] + extras["build"]) - names(SMALL) == set()
    assert needs(extras["dev"]) - names(LARGE) == set()
    assert needs(extras["dev"]) & names(SMALL) == set()
    assert len(names(SMALL)) < 40


@pytest.mark.parametrize(
    ("target", "lock"),
    [("demo", "requirements.lock"), ("test", "requirements-dev.lock"), ("docs", "requirements-dev.lock")],
)
def test_what_a_target_installs(target: str, lock: str, tmp_path: Path) -> None:
    run = ["make", "--dry-run", target, f"VENV={tmp_path / 'venv'}"]
    said = subprocess.run(run, cwd=ROOT, capture_output=True, text=True, timeout=60, check=True).stdout
    assert re.findall(r"^tools/setup.sh \S+ (\S+)$", said, re.MULTILINE) == [lock]


# A python3 that makes an environment whose pip fetches one package, unpacks it, and then fails.
PYTHON = """#!/bin/sh
[ "$1" = -m ] || exit 0
mkdir -p "$3/bin" "$3/lib/python3/site-packages/pip.dist-info"
cat >"$3/bin/pip" <<'END'
#!/bin/sh
echo "Collecting numpy==1"
echo "  Downloading numpy-1-any.whl (3.0 MB)"
sleep 4
echo "Installing collected packages: numpy, rich"
mkdir "$(dirname "$0")/../lib/python3/site-packages/numpy.dist-info"
sleep 4
echo "ERROR: no space left"
exit 1
END
chmod +x "$3/bin/pip"
"""


def test_set_up_says_how_far_it_is_and_why_it_failed(tmp_path: Path) -> None:
    python = tmp_path / "python3"
    python.write_text(PYTHON)
    python.chmod(0o755)
    env = {**os.environ, "PYTHON": str(python)}
    run = ["tools/setup.sh", str(tmp_path / "venv"), "requirements.lock"]
    done = subprocess.run(run, cwd=ROOT, env=env, capture_output=True, text=True, timeout=120, check=False)
    said = done.stderr
    assert done.returncode == 1
    assert f"s: fetching, 1 of at most {len(names(SMALL))} packages: numpy-1-any.whl (3.0 MB)\n" in said
    assert "s: unpacking, 1 of 2 packages in place\n" in said
    assert said.index("ERROR: no space left") < said.index("setup: pip cannot install requirements.lock")


def test_a_citation_names_this_version_and_licence() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert {"cff-version", "message", "title", "authors"} <= cited.keys()
    assert (cited["version"], cited["license"]) == (optcc.__version__, PROJECT["license"])
