"""The command line. Results go to stdout (one JSON object with --json), everything else to stderr.

Exit status: 0 done; 1 a result is wrong or a rank failed; 2 the input cannot be used, or the output cannot be written;
3 inconclusive; 130 interrupted; 141 nobody reads the output any more.
"""

from __future__ import annotations

import click

from optcc import __version__
from optcc.cli.bound import bound
from optcc.cli.calibrate import calibrate
from optcc.cli.diagnose import diagnose
from optcc.cli.doctor import doctor
from optcc.cli.errors import Commands
from optcc.cli.example import example
from optcc.cli.export import export
from optcc.cli.fabric import fabric
from optcc.cli.plan import plan
from optcc.cli.reproduce import reproduce
from optcc.cli.run import run
from optcc.cli.schema import schema
from optcc.cli.serve import serve
from optcc.cli.simulate import simulate
from optcc.cli.sweep import sweep
from optcc.cli.topo import topo
from optcc.cli.verify import verify


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="optcc")
def main() -> None:
    """How fast can AllReduce be on a degraded GPU cluster, which schedule gets there, and does it?

    TOPOLOGY is an NCCL topology XML, optcc's YAML, or a preset such as uniform:servers=8,nics=8,rate=400Gb/s.
    """


for command in (
    topo,
    diagnose,
    calibrate,
    bound,
    plan,
    schema,
    verify,
    simulate,
    run,
    export,
    sweep,
    reproduce,
    serve,
    example,
    fabric,
    doctor,
):
    main.add_command(command)
