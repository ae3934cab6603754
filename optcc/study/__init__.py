"""Grids of topologies x failures x sizes as tables: `optcc sweep`, and `optcc reproduce`, whose page is made of such.

Imported by: cli, diagnose.
Imports: api, discover, files, machine, planner, plans, schedule, simulation, values.
"""
