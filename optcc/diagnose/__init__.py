"""Which NIC is slow: from measurements, logs and counters to the least set of degraded NICs that explains them.

Readers (`optcc.diagnose.readers`) make `Observation`s and `Sign`s of files. `optcc.diagnose.fit` finds the NICs and
their rates, and other explanations that fit as well. `optcc.diagnose.verdict` states the result, `optcc.diagnose.keep`
whether to keep or to drain a server.

Imported by: cli, communicator, serve.
Imports: api, discover, files, machine, reports, schedule, study, values.
"""
