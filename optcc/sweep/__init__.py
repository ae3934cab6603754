"""Sweeps: grids of topologies x failures x sizes, as rows of one table.

`grid` reads the grid, `failures` makes the sets of failed NICs, `cells` are the rows and their computations. `journal`
keeps results, `table` writes them, `distribution` sums up Monte Carlo draws. All of these are pure.
`execute` computes, on local cores or a Dask cluster, and is the only part that sees the planner.

Imported by: cli.
Imports: api, discover, files, machine, planner, plans, schedule, simulation, values.
"""
