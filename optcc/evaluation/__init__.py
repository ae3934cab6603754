"""The evaluation that `optcc reproduce` makes: every scheme on every failure in one simulator, as one page.

Imported by: cli, diagnose.
Imports: api, files, machine, planner, schedule, simulation, theory, values.
"""
