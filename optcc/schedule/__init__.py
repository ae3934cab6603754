"""Schedules: a DAG of transfers in columns, and the families that make them from a plan.

Imported by: api, cli, communicator, diagnose, export, planner, plans, pytorch, runtime.control, runtime.evidence,
    runtime.measuring, runtime.native, runtime.torch, serve, simulation, study, theory.
Imports: machine, theory, values.
"""

from optcc.schedule.columns import Lane, Link, Port, Route, Schedule, Stage

__all__ = ["Lane", "Link", "Port", "Route", "Schedule", "Stage"]
