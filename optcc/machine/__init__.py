"""This machine: its sysfs, its RDMA devices, and processes on it that compute for this one.

Imported by: diagnose, discover, export, fabric, planner, reports, runtime.compiled, runtime.control,
    runtime.devices, runtime.verbs, schedule, serve, simulation, study, theory.
Imports: files.
"""
