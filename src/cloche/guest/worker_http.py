"""One HTTP/1.1 exchange over a connection of its own, for `worker_fetch.py`.

Nothing that a server sends is taken on trust: heads, bodies and what compressed ones stand for are
bounded. Nothing here has a deadline; another thread ends an exchange by `Exchange.cut`.
"""

import contextlib
import http.client
import json
import socket
import ssl
import threading
import zlib
from typing import Any

HEAD_LIMIT_BYTES = 128 * 1024
_CODINGS_LIMIT = 3


class FetchError(Exception):
    """The exchange failed, for a reason that the code may know."""


class Exchange:
    """One request, and its connection while there is one."""

    def __init__(self, identifier: int, request: dict[str, Any], body: bytes | None) -> None:
        self.identifier = identifier
        self.request = request
        self.body = body
        self.is_cut = False
        self.held_bytes = 0
        self._lock = threading.Lock()
        self._socket: socket.socket | None = None

    @property
    def place(self) -> str:
        """The host and the port, for people."""
        return f"{self.request['host']}:{self.request['port']}"

    def connect(self) -> socket.socket:
        """Return a connection to the host, without TLS so far."""
        host, port = self.request["host"].strip("[]"), self.request["port"]
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        failure: OSError = OSError("it has no address")
        for family, kind, protocol, _, address in found:
            channel = socket.socket(family, kind, protocol)
            try:
                self._keep(channel)
                channel.connect(address)
                channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return channel
            except OSError as error:
                failure = error
                self.close()
        raise failure

    def secure(self, channel: socket.socket, context: ssl.SSLContext) -> socket.socket:
        """Return the connection with TLS on it."""
        with self._lock:
            # The handshake comes later, so that it can be cut too.
            wrapped = context.wrap_socket(
                channel,
                server_hostname=self.request["host"].strip("[]"),
                do_handshake_on_connect=False,
            )
            self._socket = wrapped
        self._check()
        wrapped.do_handshake()
        return wrapped

    def _keep(self, channel: socket.socket) -> None:
        with self._lock:
            self._socket = channel
        self._check()

    def _check(self) -> None:
        if self.is_cut:
            raise ConnectionAbortedError

    def cut(self) -> None:
        """End it from another thread, whatever it waits for."""
        with self._lock:
            self.is_cut = True
            if self._socket is not None:
                with contextlib.suppress(OSError):
                    # Below TLS, whose state is the other thread's.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection."""
        with self._lock:
            channel, self._socket = self._socket, None
            if channel is not None:
                channel.close()


class _Reader:
    """The file that `http.client` reads a response from, with an end to what it takes for a head.

    It reads lines of 64 KiB, a hundred of them and any number of heads before the one that
    counts, and takes a negative size of a chunk for "everything".
    """

    def __init__(self, file: Any) -> None:
        self._file = file
        self._left_bytes: int | None = HEAD_LIMIT_BYTES

    def end_head(self) -> None:
        """From now on lines do not count."""
        self._left_bytes = None

    def readline(self, limit: int) -> bytes:
        """Read a line of up to `limit` bytes."""
        line: bytes = self._file.readline(limit)
        if self._left_bytes is not None:
            self._left_bytes -= len(line)
            if self._left_bytes < 0:
                raise FetchError(f"the head of the response is over {HEAD_LIMIT_BYTES} bytes")
        return line

    def read(self, count: int) -> bytes:
        """Read up to `count` bytes."""
        if count < 0:
            raise http.client.HTTPException("a chunk of a negative size")
        return bytes(self._file.read(count))

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Close the file."""
        self._file.close()


class _Response(http.client.HTTPResponse):
    def __init__(self, channel: socket.socket, *args: Any, **kwargs: Any) -> None:
        super().__init__(channel, *args, **kwargs)
        self.fp: Any = _Reader(self.fp)

    def _read_status(self) -> tuple[str, int, str]:
        """Read the status of the response, past those that only tell that it will come."""
        while True:
            version, status, reason = super()._read_status()  # type: ignore[misc]
            if status == 101:
                raise http.client.HTTPException("it changes the protocol")
            if status >= 200:
                return version, status, reason
            http.client.parse_headers(self.fp)


class Decoder:
    """Undoes the content coding of a response, up to a size."""

    def __init__(self, codings: str) -> None:
        names = [name.strip().lower() for name in codings.split(",") if name.strip()]
        known = all(name in ("gzip", "x-gzip", "deflate", "identity") for name in names)
        names = [name for name in names if name != "identity"] if known else []
        if len(names) > _CODINGS_LIMIT:
            raise FetchError("the response is compressed too often")
        # Outermost first. A coding that is not known is left as it is.
        self._names = names[::-1]
        self._steps: list[Any] = [None] * len(names)

    def feed(self, data: bytes, room_bytes: int) -> bytes:
        """Return what `data` stands for: more than `room_bytes` where there is no room for it."""
        for index in range(len(self._names)):
            data = self._undo(index, data, room_bytes + 1)
        return data

    def _undo(self, index: int, data: bytes, limit_bytes: int) -> bytes:
        made = bytearray()
        while data and len(made) < limit_bytes:
            step = self._steps[index]
            if step is None:
                step = self._steps[index] = zlib.decompressobj(self._window(index, data))
            made += step.decompress(data, limit_bytes - len(made))
            data = step.unused_data if step.eof else b""
            if step.eof and data:
                if self._names[index] == "deflate":
                    break  # what follows belongs to nothing
                self._steps[index] = None  # another member
        return bytes(made)

    def _window(self, index: int, data: bytes) -> int:
        if self._names[index] != "deflate":
            return 16 + zlib.MAX_WBITS
        # Source: RFC 9110, 8.4.1.2: some send it without the zlib wrapper.
        wrapped = data[0] & 15 == 8 and (len(data) < 2 or (data[0] * 256 + data[1]) % 31 == 0)
        return zlib.MAX_WBITS if wrapped else -zlib.MAX_WBITS

    def end(self) -> None:
        """See that nothing is missing."""
        if any(step is not None and not step.eof for step in self._steps):
            raise FetchError("the compressed response ended early")


def read_request(text: str) -> dict[str, Any] | None:
    """Return a request, or None for what is none: code may have changed what the prelude uses."""
    try:
        request = json.loads(text)
    except (ValueError, RecursionError):
        return None
    kinds = {"method": str, "secure": bool, "host": str, "port": int, "path": str, "headers": list}
    if not isinstance(request, dict):
        return None
    if any(not isinstance(request.get(name), kind) for name, kind in kinds.items()):
        return None
    for pair in request["headers"]:
        if not isinstance(pair, list) or [type(part) for part in pair] != [str, str]:
            return None
    return request


def ask(
    channel: socket.socket, request: dict[str, Any], body: bytes | None
) -> http.client.HTTPResponse:
    """Send a request; return the response, its head read."""
    connection = http.client.HTTPConnection(request["host"], request["port"])
    connection.auto_open = 0
    connection.response_class = _Response
    connection.sock = channel
    connection.putrequest(
        request["method"], request["path"], skip_host=True, skip_accept_encoding=True
    )
    for name, value in request["headers"]:
        connection.putheader(name, value.encode("latin-1"))
    if body is None and request["method"] in ("POST", "PUT"):
        body = b""
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    with contextlib.suppress(ConnectionError):
        # A server may have answered, and ended, before it has heard all.
        connection.endheaders(body or None)
    response = connection.getresponse()
    response.fp.end_head()  # type: ignore[attr-defined]
    return response


_trust: ssl.SSLContext | None = None
_trust_lock = threading.Lock()


def trust() -> ssl.SSLContext:
    """Return what TLS is made with: the authorities that SSL_CERT_FILE names."""
    global _trust
    with _trust_lock:
        if _trust is None:
            context = ssl.create_default_context()
            context.set_alpn_protocols(["http/1.1"])
            _trust = context
        return _trust


def explain(error: Exception, exchange: Exchange) -> str:
    """Say why an exchange failed: the host and the reason."""
    place = exchange.place
    if isinstance(error, FetchError):
        return f"{place}: {error}"
    if isinstance(error, socket.gaierror):
        return f"{exchange.request['host']} is not known: not in allow_hosts, or no such name"
    if isinstance(error, UnicodeError):  # of a label that is too long
        return f"{exchange.request['host']} is no host name"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"{place}: its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"{place}: TLS failed: {error.reason or 'the connection ended'}"
    if isinstance(error, ConnectionRefusedError):
        return f"{place} does not listen, or its port is not in allow_hosts"
    if isinstance(error, ConnectionError):
        return f"{place} closed the connection: it cannot be reached, or is not in allow_hosts"
    if isinstance(error, http.client.IncompleteRead):
        return f"{place}: the response ended early"
    if isinstance(error, http.client.HTTPException):
        return f"{place} gave no HTTP response ({type(error).__name__})"
    if isinstance(error, zlib.error):
        return f"{place}: the response is not compressed as it says"
    if isinstance(error, OSError):
        return f"{place}: {error.strerror or 'no connection'}"
    return f"{place}: {type(error).__name__}"
