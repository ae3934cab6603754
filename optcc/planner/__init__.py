"""Which family of schedules and how many segments: candidates are simulated, the fastest is the plan.

Imported by: api, cli, evaluation, serve, sweep.
Imports: machine, plans, schedule, simulation, theory, values.
"""
