"""The plan, and its file: a header for people, the transfers in columns.

Imported by: api, cli, communicator, export, fault_run, planner, pytorch, reports, runtime.torch, serve, study.
Imports: files, schedule, values.
"""
