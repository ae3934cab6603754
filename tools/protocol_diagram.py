"""Write the generated part of docs/failover-protocol.md anew: python tools/protocol_diagram.py"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "failover-protocol.md"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from optcc.runtime.protocol.diagram import update

    PAGE.write_text(update(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
