"""Values that everything else speaks of: units, clusters, bounds and their certificates, and these as JSON.

Imported by: api, cli, communicator, diagnose, discover, export, fabric, fault_run, planner, plans, pytorch, reports,
    runtime.torch, schedule, serve, simulation, study, theory, torch_backend.
Imports: nothing.
"""
