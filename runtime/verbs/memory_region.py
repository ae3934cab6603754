"""Memory that a device may read and write."""

from __future__ import annotations

from optcc.runtime.verbs.binding import call, keys, make
from optcc.runtime.verbs.structs import ACCESS_LOCAL_WRITE, ACCESS_REMOTE_READ, ACCESS_REMOTE_WRITE

LOCAL, REMOTE = ACCESS_LOCAL_WRITE, ACCESS_LOCAL_WRITE | ACCESS_REMOTE_WRITE | ACCESS_REMOTE_READ
"""Who may write there: this machine; other machines, too, which may also read."""


class MemoryRegion:
    """A registration. `lkey`, `rkey` : what names it in work requests, here and at the other end."""

    def __init__(self, address: int) -> None:
        """Of the registration at `address`."""
        self._address = address
        self.lkey, self.rkey = keys(address)

    @classmethod
    def of(cls, domain: int, address: int, nbytes: int, access: int) -> MemoryRegion:
        """Of memory of this process, in a protection domain. Raises VerbsError."""
        return cls(make("ibv_reg_mr", domain, address, nbytes, access))

    @classmethod
    def of_dmabuf(cls, domain: int, fd: int, nbytes: int, access: int) -> MemoryRegion:
        """Of a dma-buf from its first byte, which work requests then call 0. Raises VerbsError."""
        return cls(make("ibv_reg_dmabuf_mr", domain, 0, nbytes, 0, fd, access))

    def close(self) -> None:
        """Take it back."""
        if self._address:
            address, self._address = self._address, 0
            call("ibv_dereg_mr", address)
