"""The planner as a local service, for collective libraries that are not in Python (docs/planning-at-failure.md).

Imported by: cli.
Imports: api, diagnose, discover, machine, planner, plans, reports, schedule, simulation, theory, values.
"""
