"""The plan, its file, and what it lowers to for executors that lower nothing themselves.

Imported by: api, cli, communicator, export, fault_run, planner, pytorch, reports, runtime.torch, serve, study.
Imports: files, schedule, values.
"""
