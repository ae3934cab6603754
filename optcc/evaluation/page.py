"""The page of `optcc reproduce`: everything computed, written down with what it was computed with."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from optcc import __version__
from optcc.evaluation import claims, figures, rig, straggler, tables
from optcc.evaluation.cells import ALPHA, NIC_RATE, NICS, PER_CHUNK
from optcc.evaluation.grid import PUBLISHED, TARGET_BYTES, EvaluationGrid
from optcc.evaluation.markdown import cost_of
from optcc.evaluation.rivals import R2CC_CHUNKS
from optcc.evaluation.target import counts, held, target_lines
from optcc.evaluation.tasks import PACKAGES, ResultJournal, Task, run_all
from optcc.evaluation.training import FAILOVER_S, TrainingJob
from optcc.files.writing import staged
from optcc.machine.findings import package_version
from optcc.values.units import format_rate, format_seconds, format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Evaluation:
    """Markdown of the page, its figures by file name; how many cells the target holds for, and how many miss it."""

    text: str
    figures: dict[str, Figure]
    misses: int
    cells: int


def work(grid: EvaluationGrid) -> int:
    """How many tasks `evaluate` does."""
    return sum(map(len, (grid.cells(), grid.rails, grid.stars, grid.rigs(), grid.costs)))


def evaluate(
    grid: EvaluationGrid,
    job: TrainingJob,
    *,
    jobs: int,
    command: str,
    done: Callable[[], None],
    kept: ResultJournal | None = None,
) -> Evaluation:
    """Run the grid on `jobs` processes. `done` is called after each task; `command` is quoted on the page; what is
    `kept` is not computed again, and what is computed is kept there.
    """
    cells = grid.cells()
    # In one pool, so that no process waits for the last cell before it begins with the rails.
    tasks: list[Task] = [*cells, *grid.rails, *grid.stars, *grid.rigs()]
    results = run_all(tasks, jobs=jobs, done=done, kept=kept)
    outcomes = {cell: results[cell] for cell in cells}
    # Alone on the machine and each in its own process: these are times and memory, not simulated ones.
    results |= run_all(grid.costs, jobs=1, done=done, fresh=True)
    blocks = {
        "misses": target_lines(grid, results),
        "unavoidable": straggler.unavoidable_table(grid, outcomes),
        "free": straggler.free_table(grid, outcomes),
        "overheads": straggler.overhead_table(grid, outcomes),
        "rig": straggler.rig_table(grid, results),
        "r2cc": claims.r2cc_table(grid, outcomes),
        "targets": straggler.target_table(grid, outcomes),
        "several": tables.several_table(grid, outcomes),
        "messages": tables.message_table(grid, outcomes),
        "rails": tables.rails_table(grid, results),
        "planning": tables.cost_table(grid, results),
        "stars": tables.star_table(grid, results),
        "training": tables.training_table(grid, outcomes, job),
    }
    words = {
        "command": command,
        "nics": NICS,
        "rate": format_rate(NIC_RATE),
        "alpha": format_seconds(ALPHA),
        "per_chunk": format_seconds(PER_CHUNK),
        "least_cost": cost_of(min(grid.per_chunks)),
        "costs_of_chunks": ", ".join(map(cost_of, grid.per_chunks)),
        "most_servers": grid.most_servers,
        "published": PUBLISHED,
        "reconstructed": straggler.RECONSTRUCTED,
        "mark": tables.RECONSTRUCTED_MARK,
        "r2cc_chunks": R2CC_CHUNKS,
        "rig_servers": rig.SERVERS,
        "rig_rate": f"{float(rig.RATE) * 8 / 1e9:g} Gb/s",
        "rig_size": format_size(rig.NBYTES),
        "rig_segments": rig.SEGMENTS,
        "size": format_size(grid.size),
        "message_servers": grid.message_servers,
        "cost_size": format_size(grid.costs[0].nbytes),
        "target_bytes": format_size(TARGET_BYTES),
        "mttf": f"{job.mttf_s / 3600:g}",
        "mttf_gpus": job.mttf_gpus,
        "nic_share": f"{100 * job.nic_share:.3g}",
        "repair": f"{job.repair_s / 3600:g}",
        "restart": f"{job.restart_s / 60:g}",
        "exposed": f"{100 * job.exposed:g}",
        "step": f"{job.step_s:g}",
        "failover": f"{job.failover_s:g}",
        "default_failover": f"{FAILOVER_S:g}",
        "version": __version__,
        "python": platform.python_version(),
        "packages": ", ".join(f"{name} {package_version(name)}" for name in PACKAGES),
    }
    text = Template(files("optcc.evaluation").joinpath("page.md").read_text(encoding="utf-8"))
    said = claims.words(grid, outcomes, results)
    page = text.substitute(words, **said, **{name: "\n".join(lines) for name, lines in blocks.items()})
    pictures = {
        "evaluation-overhead.svg": figures.overhead_figure(grid, outcomes),
        "evaluation-costs.svg": figures.cost_figure(grid, outcomes),
        "evaluation-above.svg": figures.above_figure(grid, outcomes),
        "evaluation-messages.svg": figures.message_figure(grid, outcomes),
    }
    return Evaluation(page, pictures, *counts(held(grid, results)))


def linked(text: str, folder: Path) -> str:
    """`text` for a page in `folder`: links to other pages of the docs lead to where these are, in the folder itself or
    in `docs` of one above; where there are none near they are no links, but name the page."""
    links = re.compile(r"\[([^\]]+)\]\(([\w-]+\.md)(#[\w-]+)?\)")
    pages = {name for _, name, _ in links.findall(text)}
    here = folder.resolve()
    near = (here, *(above / "docs" for above in (here, *here.parents)))
    docs = next((docs for docs in near if all((docs / name).is_file() for name in pages)), None)
    if docs is None:
        return links.sub(r"\1 (docs/\2)", text)
    way = os.path.relpath(docs, here)
    return links.sub(lambda link: f"[{link[1]}]({Path(way, link[2]).as_posix()}{link[3] or ''})", text)


def write(evaluation: Evaluation, path: Path) -> list[Path]:
    """Write the page and, beside it, its figures; the paths written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = {path: linked(evaluation.text, path.parent).encode()}
    written |= {path.parent / name: figures.drawn(figure) for name, figure in evaluation.figures.items()}
    with staged(written):
        return [*written]
