#!/usr/bin/env python3
"""Build the Coq proofs from scratch and ask Coq what every headline rests on.

    python3 check.py [DIR] [--recheck]

DIR is a folder of proofs (default: the one of this file).  Its sources are copied to
a temporary folder first, so nothing compiled earlier is trusted and nothing is left
behind.  The exit status is 0 only if every file compiles, every theorem named in
HEADLINES exists in Headlines.v, and Coq prints "Closed under the global context" for
each: no axiom, no `Admitted`, no switched-off check anywhere below it.
--recheck also runs coqchk, an independent checker, over the compiled proofs and the
parts of Coq's library they use (about a minute more).
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIBRARY = "optcc"
CLOSED = "Closed under the global context"
INSTALL = "apt-get install -y --no-install-recommends coq"

# The ledger (../README.md) points at these names.
HEADLINES = (
    "exactly_once_sums",
    "exactly_once_is_allreduce",
    "double_count_is_allreduce",
    "double_count_is_refused",
    "traffic_per_element",
    "traffic",
    "traffic_attained",
    "partition_per_element",
    "partition",
    "cut_sends",
    "cut_receives",
    "cut_time",
    "traffic_time",
    "partition_time",
    "block_cut_time",
    "lower_bound",
    "lower_bound_attained",
    "shares_nonneg",
    "shares_sum",
    "shares_load",
    "shares_fit",
    "nested_rings_carry",
    "nested_rings_optimal",
    "healthy_time",
    "single_straggler",
    "switch_below",
    "switch_above",
    "one_over_p",
    "one_over_p_exact",
    "coding",
    "coding_attained",
    "coding_entropies",
    "coding_entropies_with_coins",
    "coding_partition_entropies",
    "coding_partition",
    "coding_average",
    "coding_partition_average",
    "coding_lacking",
    "coding_adaptive",
    "coding_time",
    "coding_partition_time",
    "coding_lower_bound",
    "coding_lower_bound_attained",
    "half_program_parts",
    "half_program_cuts",
)


class CheckError(Exception):
    """A proof is missing, broken or not closed; the message says which."""


def run(build: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, cwd=build, capture_output=True, text=True)


def sources(folder: Path) -> list[str]:
    """The files of _CoqProject, in the order in which they depend on each other."""
    project = folder / "_CoqProject"
    if not project.is_file():
        raise CheckError(f"{project} does not exist")
    listed = [line for line in project.read_text().split() if line.endswith(".v")]
    stray = {path.name for path in folder.glob("*.v")} - set(listed)
    if stray:
        raise CheckError(f"not listed in _CoqProject: {', '.join(sorted(stray))}")
    for name in listed:
        if not (folder / name).is_file():
            raise CheckError(f"_CoqProject lists {name}, which does not exist")
    return listed


def compile_all(folder: Path, build: Path) -> None:
    for name in sources(folder):
        shutil.copy(folder / name, build / name)
        result = run(build, "coqc", "-q", "-Q", ".", LIBRARY, name)
        if result.returncode != 0:
            raise CheckError(f"{name} does not compile:\n{result.stderr.strip()}")


def asked(build: Path, lines: list[str], names: tuple[str, ...]) -> dict[str, str]:
    """What Coq prints for `Print Assumptions`, by name, after `lines`."""
    lines = [f"From {LIBRARY} Require Headlines.", *lines]
    lines += [f'Redirect "{name}" Print Assumptions {name}.' for name in names]
    (build / "Audit.v").write_text("\n".join(lines) + "\n")
    result = run(build, "coqc", "-q", "-Q", ".", LIBRARY, "Audit.v")
    if result.returncode != 0:
        raise CheckError(f"a headline is missing:\n{result.stderr.strip()}")
    return {name: (build / f"{name}.out").read_text().strip() for name in names}


def assumptions(build: Path) -> dict[str, str]:
    """What Coq prints for `Print Assumptions`, by headline.

    Each takes a walk through all of the library below it.  So one walk is made for
    all of them together, whose assumptions are those of all; if that is not closed,
    they are asked for one by one, to say which is not.
    """
    terms = {name: f"{LIBRARY}.Headlines.{name}" for name in HEADLINES}
    together = f"Definition together := ({', '.join(f'@{term}' for term in terms.values())})."
    if asked(build, [together], ("together",))["together"] == CLOSED:
        return dict.fromkeys(HEADLINES, CLOSED)
    printed = asked(build, [], tuple(terms.values()))
    return {name: printed[term] for name, term in terms.items()}


def audit(build: Path) -> None:
    stated = re.findall(r"^\s*Theorem\s+(\w+)", (build / "Headlines.v").read_text(), re.M)
    unlisted = [name for name in stated if name not in HEADLINES]
    if unlisted:
        raise CheckError(f"stated but not in HEADLINES of check.py: {', '.join(unlisted)}")
    problems = []
    for name, printed in assumptions(build).items():
        if printed == CLOSED:
            print(f"  {name:<28}{printed}")
        else:
            problems.append(f"headline {name} is not closed:\n{printed}")
    if problems:
        raise CheckError("\n".join(problems))


def recheck(build: Path) -> None:
    result = run(build, "coqchk", "-silent", "-o", "-Q", ".", LIBRARY, f"{LIBRARY}.Headlines")
    summary = result.stdout + result.stderr
    if result.returncode != 0 or "* Axioms: <none>" not in summary:
        raise CheckError(f"coqchk objects:\n{summary}")
    print("  coqchk agrees: no axioms")


def main() -> int:
    parser = argparse.ArgumentParser(description="check the Coq proofs")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(__file__).parent)
    parser.add_argument("--recheck", action="store_true", help="also run coqchk")
    options = parser.parse_args()
    if shutil.which("coqc") is None:
        print(f"check failed: coqc is not installed; {INSTALL}", file=sys.stderr)
        return 2
    start = time.monotonic()
    try:
        with tempfile.TemporaryDirectory() as temporary:
            build = Path(temporary)
            compile_all(options.folder, build)
            audit(build)
            if options.recheck:
                recheck(build)
    except CheckError as failure:
        print(f"check failed: {failure}", file=sys.stderr)
        return 1
    seconds = time.monotonic() - start
    print(f"{len(HEADLINES)} headlines proved without assumptions ({seconds:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
