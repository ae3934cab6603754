"""Plans in the formats of other executors, simulators and viewers: each with its reader and interpreter.

`chunks` turns a plan into whole numbers of equal chunks; `mscclpp`, `msccl`, `chakra` and `perfetto` write and read;
the `*_run` modules execute what was read by the rules of the target, and know nothing of our schedule.

Imported by: cli.
Imports: files, machine, plans, schedule, simulation, values.
"""
