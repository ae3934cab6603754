"""Wires over RDMA verbs: queue pairs by pyverbs. Importing `optcc.runtime.verbs.wires` needs pyverbs; this does not."""
