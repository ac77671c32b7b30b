"""A ZeroMQ socket that hears those who have the session's keys and nobody else, for the kernel and for its gateway."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .session_files import Keys

if TYPE_CHECKING:
    import zmq

_DOMAIN = "ranks"  # ZeroMQ's word for whose question it is; with it, nobody is admitted while nobody answers


class Listener:
    """A ROUTER with CURVE, and the socket at which ZeroMQ asks whether to admit a client (RFC 27/ZAP).

    Attributes:
        router: takes the messages.
        admission: to be polled beside it; `admit` answers what it has.
    """

    def __init__(self, keys: Keys, largest: int, waiting: int) -> None:
        """`largest`: bytes of a message; `waiting`: messages of a client that wait to be received, or to be sent."""
        import zmq
        from zmq.utils.z85 import decode

        self._client = decode(keys.client)
        self.context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self.admission = self.context.socket(zmq.REP)
            self.admission.bind("inproc://zeromq.zap.01")
            self.router = self.context.socket(zmq.ROUTER)
            self.router.setsockopt(zmq.LINGER, 0)
            self.router.setsockopt(zmq.RCVHWM, waiting)
            self.router.setsockopt(zmq.SNDHWM, waiting)
            self.router.setsockopt(zmq.MAXMSGSIZE, largest)
            self.router.zap_domain = _DOMAIN.encode()
            self.router.curve_server = True
            self.router.curve_secretkey = keys.server_secret
            self.router.curve_publickey = keys.server
        except BaseException:
            self.close()
            raise

    def bind(self, address: str) -> str:
        """Listen there, too; returns the address with its port."""
        import zmq

        self.router.bind(address)
        return str(self.router.getsockopt_string(zmq.LAST_ENDPOINT))

    def admit(self) -> None:
        """Answer a question: who has the client's key may come in."""
        version, request, _domain, _address, _identity, mechanism, *credentials = self.admission.recv_multipart()
        known = mechanism == b"CURVE" and credentials == [self._client]
        status = (b"200", b"OK") if known else (b"400", b"No access")
        self.admission.send_multipart([version, request, *status, b"", b""])

    def close(self) -> None:
        self.context.destroy(linger=0)
