"""Where buffers are and what folds them: host memory by numpy, a GPU by cupy, arrays of other libraries.

Imported by: cli, communicator, runtime.control, runtime.evidence, runtime.native.
Imports: machine.
"""
