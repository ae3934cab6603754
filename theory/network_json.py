"""The program's network as JSON values, in columns: what its dual and primal count, for whoever checks them by hand."""

from __future__ import annotations

from typing import Any

import numpy as np

from optcc.theory.cuts import View
from optcc.theory.network import Network


def network_json(network: Network, views: list[View]) -> dict[str, Any]:
    """docs/certificates.md explains the fields; `views` are those of every rank type, in order."""
    use = network.use.tocoo()
    return {
        "rank_types": [
            {"what": t.name, "count": int(n)} for t, n in zip(network.rank_types, network.multiplicity, strict=True)
        ],
        "resources": [
            {"what": r.what, "rate_exact": str(r.rate), "count": r.count, "nics": list(r.nics)}
            for r in network.resources
        ],
        "orbits": {
            "from": [o.x for o in network.orbits],
            "to": [o.y for o in network.orbits],
            "same_server": [int(o.same_server) for o in network.orbits],
            "same_slot": [int(o.same_slot) for o in network.orbits],
        },
        "ways": {"orbit": network.way_orbit.tolist()},
        "uses": {"resource": use.row.tolist(), "way": use.col.tolist(), "load": use.data.tolist()},
        "views": [_view_json(view) for view in views],
    }


def _view_json(view: View) -> dict[str, Any]:
    pairs = view.pairs.tocoo()
    source, target = np.divmod(pairs.row, view.nodes)
    return {
        "nodes": {"rank_type": view.node_type.tolist(), "count": view.size.tolist()},
        "pairs": {
            "from": source.tolist(),
            "to": target.tolist(),
            "orbit": pairs.col.tolist(),
            "count": pairs.data.tolist(),
        },
    }
