"""The failover protocol of a flow as two pure machines: what happened goes in, what is to be done comes out.

Imported by: runtime.flows.
Imports: runtime.errors, runtime.wires.
"""

from optcc.runtime.protocol.doubting import SenderState
from optcc.runtime.protocol.receiver import Receiver, ReceiverState
from optcc.runtime.protocol.sender import Sender
from optcc.runtime.protocol.table import ProtocolError

__all__ = ["ProtocolError", "Receiver", "ReceiverState", "Sender", "SenderState"]
