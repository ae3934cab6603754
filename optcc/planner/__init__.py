"""Which family of schedules and how many segments: candidates are simulated, the fastest is the plan.

Imported by: api, cli, export, serve, study.
Imports: machine, plans, schedule, simulation, theory, values.
"""
