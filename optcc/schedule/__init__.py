"""Schedules: a DAG of transfers in columns, and the families that make them from a plan."""

from optcc.schedule.columns import Lane, Link, Port, Route, Schedule, Stage

__all__ = ["Lane", "Link", "Port", "Route", "Schedule", "Stage"]
