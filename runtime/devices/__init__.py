"""Where buffers are and what folds them: host memory by numpy, a GPU by cupy, arrays of other libraries.

Imported by: cli, communicator, runtime.compiled, runtime.control, runtime.engine, runtime.evidence,
    runtime.measuring, runtime.native, runtime.verbs, runtime.wires.
Imports: machine.
"""
