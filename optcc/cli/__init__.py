"""The command line, a file for each command. Only here are options read and results printed.

Imported by: __main__.
Imports: api, diagnose, discover, export, fabric, fault_run, files, machine, planner, plans, reports,
    runtime.control, runtime.devices, runtime.measuring, runtime.messages, schedule, serve, simulation, study,
    theory, values.
"""

from optcc.cli.options import main

__all__ = ["main"]
