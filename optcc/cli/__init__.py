"""The command line, a file for each command. Only here are options read and results printed.

Imported by: __main__.
Imports: api, diagnose, discover, export, fabric, fault_run, files, machine, planner, plans, reports,
    runtime.compiled, runtime.control, runtime.devices, runtime.measuring, runtime.messages, runtime.verbs, schedule,
    serve, simulation, study, theory, values.
"""

from optcc.cli import (
    bound,
    calibrate,
    diagnose,
    doctor,
    example,
    export,
    fabric,
    nccl,
    plan,
    ranks,
    reproduce,
    run,
    schema,
    serve,
    simulate,
    sweep,
    topo,
    verify,
)  # fmt: skip
from optcc.cli.options import main

__all__ = ["main"]

for module in (
    bound, calibrate, diagnose, doctor, example, export, fabric, nccl, plan, ranks,
    reproduce, run, schema, serve, simulate, sweep, topo, verify,
):  # fmt: skip
    main.add_command(getattr(module, module.__name__.rpartition(".")[2]))
