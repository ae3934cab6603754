"""This machine: its sysfs, its RDMA devices, and processes on it that compute for this one.

Imported by: cli, diagnose, discover, export, fabric, planner, runtime.control, runtime.devices, runtime.native,
    schedule, serve, simulation, study, theory.
Imports: files.
"""
