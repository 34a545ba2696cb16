"""Connections from the host to registries: plain GETs, kept alive, ended all at once.

Blocking, one exchange a thread: threads that wait in `recv` cost a fifth of the CPU time that an
event loop's TLS does, and CPU time is what an install is short of.
"""

from __future__ import annotations

import socket
import ssl
import threading
from base64 import b64encode
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from http.client import HTTPConnection, HTTPException, HTTPResponse
from typing import TYPE_CHECKING, Final

from cloche.errors import UnavailableError
from cloche.settings.address import Address

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cloche.settings.access import Access

CONNECT_TIMEOUT_S: Final = 10.0
IDLE_TIMEOUT_S: Final = 30.0
REDIRECTS_LIMIT_COUNT: Final = 3
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})


class ConnectionFailedError(Exception):
    """No whole answer was had.

    Attributes:
        retry: Asking again may well help.
    """

    def __init__(self, message: str, *, retry: bool) -> None:
        super().__init__(message)
        self.retry = retry


@dataclass(slots=True)
class _Line:
    """A connection to one origin."""

    origin: str
    channel: socket.socket
    http: HTTPConnection


class Answer:
    """An answer whose body is yet to be read.

    Attributes:
        address: Where it came from, after redirects.
        status: The HTTP status.
        size_bytes: Of the body, as announced; None where it was not.
    """

    def __init__(self, address: Address, response: HTTPResponse) -> None:
        self.address = address
        self.status = response.status
        self.size_bytes = response.length
        self._response = response

    def read_into(self, buffer: memoryview) -> int:
        """Fills the buffer as far as there is body left: 0 at its end.

        Raises:
            ConnectionFailedError: The body ended before its announced end, or came too slowly.
        """
        left = self._response.length
        with _told_of(self.address):
            count = self._response.readinto(buffer)
        if not count and left:
            raise ConnectionFailedError(f"{self.address.origin} hung up early", retry=True)
        return count


class Connections:
    """Exchanges with any number of servers; threads may share it.

    Args:
        access: Whom to trust, which credentials go where, and by which proxy.
    """

    def __init__(self, access: Access) -> None:
        self._access = access
        self._lock = threading.Lock()
        self._channels: set[socket.socket] = set()
        self._idle: list[_Line] = []
        self._context: ssl.SSLContext | None = None
        self._is_closed = False

    @contextmanager
    def get(self, address: Address, accept: str = "*/*") -> Iterator[Answer]:
        """The answer to a GET, after at most three redirects.

        Credentials go only where they are configured for, and never to another origin than that
        of `address`. The body comes as the server has it, with no encoding undone.

        Raises:
            ConnectionFailedError: There is none.
            UnavailableError: The authorities to trust cannot be read.
        """
        first = address
        for _ in range(REDIRECTS_LIMIT_COUNT + 1):
            line, response = self._ask(address, first, accept)
            try:
                target = response.headers.get("Location")
                if response.status not in _REDIRECTS or target is None:
                    yield Answer(address, response)
                    return
                address = _follow(address, target)
            finally:
                is_reusable = response.isclosed() and line.http.sock is not None
                response.close()
                self._give_back(line, is_reusable=is_reusable)
        raise ConnectionFailedError(f"{first.origin} redirects without end", retry=False)

    def interrupt(self) -> None:
        """Ends every exchange, whatever it is waiting for, and lets no new one start."""
        with self._lock:
            self._is_closed = True
            for channel in self._channels:
                with suppress(OSError):
                    # Not SSLSocket's own, which pulls the TLS state from under another thread.
                    socket.socket.shutdown(channel, socket.SHUT_RDWR)

    def close(self) -> None:
        """Closes what is kept. Requires: no exchange is going on."""
        self.interrupt()
        for line in self._idle:
            self._close(line.channel, line.http)
        self._idle.clear()

    def _ask(self, address: Address, first: Address, accept: str) -> tuple[_Line, HTTPResponse]:
        headers = {
            "Host": address.netloc,
            "Accept": accept,
            "Accept-Encoding": "identity",
            "User-Agent": "cloche",
        }
        if address.origin == first.origin:
            authorization = self._access.authorization_for(address)
            if authorization is not None:
                headers["Authorization"] = authorization
        target = address.target
        proxy = self._access.proxy_for(address)
        if proxy is not None and address.scheme == "http":
            target = str(address)
            headers |= _proxy_headers(proxy)
        while True:
            with _told_of(address, self._access):
                line, is_fresh = self._line(address, proxy)
                try:
                    line.http.request("GET", target, headers=headers)
                    return line, line.http.getresponse()
                except BaseException as error:
                    self._give_back(line, is_reusable=False)
                    # A server may close a kept connection at any time: that is no failure.
                    if is_fresh or not isinstance(error, ConnectionError):
                        raise

    def _line(self, address: Address, proxy: Address | None) -> tuple[_Line, bool]:
        """A connection that nobody else uses, and whether it is a new one."""
        with self._lock:
            for index in reversed(range(len(self._idle))):
                if self._idle[index].origin == address.origin:
                    return self._idle.pop(index), False
        channel = self._dial(address if proxy is None else proxy)
        try:
            if address.scheme == "https":
                if proxy is not None:
                    _open_tunnel(channel, address, proxy)
                channel = self._start_tls(channel, address.host)
            channel.settimeout(IDLE_TIMEOUT_S)
        except BaseException:
            self._close(channel)
            raise
        http = HTTPConnection(address.host, address.port)
        http.sock = channel
        return _Line(address.origin, channel, http), True

    def _give_back(self, line: _Line, *, is_reusable: bool) -> None:
        if is_reusable:
            with self._lock:
                self._idle.append(line)
        else:
            self._close(line.channel, line.http)

    def _dial(self, address: Address) -> socket.socket:
        failure = OSError("has no address")
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
        for family, kind, protocol, _, place in found:
            channel = socket.socket(family, kind, protocol)
            self._hold(channel)
            try:
                channel.settimeout(CONNECT_TIMEOUT_S)
                channel.connect(place)
                channel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                return channel
            except OSError as error:
                failure = error
                self._close(channel)
        raise failure

    def _start_tls(self, channel: socket.socket, host: str) -> socket.socket:
        with self._lock:
            if self._context is None:
                self._context = _make_context(self._access)
            # The descriptor changes hands.
            self._channels.discard(channel)
            secure = self._context.wrap_socket(
                channel, server_hostname=host, do_handshake_on_connect=False
            )
            self._channels.add(secure)
        try:
            secure.do_handshake()
        except BaseException:
            self._close(secure)
            raise
        return secure

    def _hold(self, channel: socket.socket) -> None:
        with self._lock:
            if not self._is_closed:
                self._channels.add(channel)
                return
        channel.close()
        raise OSError("closed on this side")

    def _close(self, channel: socket.socket, http: HTTPConnection | None = None) -> None:
        with self._lock:
            self._channels.discard(channel)
            channel.close()
        if http is not None:
            http.close()


@contextmanager
def _told_of(address: Address, access: Access | None = None) -> Iterator[None]:
    """Says where it was that an exchange failed."""
    try:
        yield
    except ssl.SSLCertVerificationError as error:
        advice = "" if access is None else f". Name its authority: {access.trust_command}"
        raise ConnectionFailedError(
            f"{address.origin} is not who it says: {error.verify_message}{advice}", retry=False
        ) from error
    except TimeoutError as error:
        raise ConnectionFailedError(f"{address.origin} does not answer", retry=True) from error
    except UnicodeError as error:  # what getaddrinfo raises for a label of more than 63 letters
        raise ConnectionFailedError(f"{address.origin} is no host name", retry=False) from error
    except (OSError, HTTPException) as error:
        why = getattr(error, "strerror", None) or type(error).__name__
        raise ConnectionFailedError(f"{address.origin}: {why}", retry=True) from error


def _follow(address: Address, target: str) -> Address:
    try:
        following = Address.parse(target, base=address)
    except ValueError as error:
        raise ConnectionFailedError(
            f"{address.origin} redirects to what {error}", retry=False
        ) from error
    if address.scheme == "https" and following.scheme != "https":
        raise ConnectionFailedError(f"{address.origin} redirects away from TLS", retry=False)
    return following


def _proxy_headers(proxy: Address) -> dict[str, str]:
    if proxy.user is None:
        return {}
    return {"Proxy-Authorization": f"Basic {b64encode(proxy.user.encode()).decode()}"}


def _open_tunnel(channel: socket.socket, address: Address, proxy: Address) -> None:
    """Has the proxy connect to the address; nothing but TLS is said after that."""
    host = f"[{address.host}]" if ":" in address.host else address.host
    lines = [f"CONNECT {host}:{address.port} HTTP/1.1", f"Host: {host}:{address.port}"]
    lines += [f"{name}: {value}" for name, value in _proxy_headers(proxy).items()]
    channel.sendall("\r\n".join([*lines, "", ""]).encode("ascii"))
    response = HTTPResponse(channel, method="CONNECT")
    try:
        response.begin()
    finally:
        response.close()
    if response.status != 200:
        raise ConnectionFailedError(
            f"the proxy {proxy.origin} answered {response.status}", retry=response.status >= 500
        )


def _make_context(access: Access) -> ssl.SSLContext:
    """Trusts the system's authorities (OpenSSL: SSL_CERT_FILE, SSL_CERT_DIR) and the tool's own."""
    context = ssl.create_default_context()
    if not access.verify_tls:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    try:
        for path in access.ca_files:
            context.load_verify_locations(path)
        for text in access.ca_texts:
            context.load_verify_locations(cadata=text)
    except (OSError, ValueError) as error:
        raise UnavailableError(
            f"the authorities that {access.tool} is told to trust cannot be read: {error}",
            fact=access.fact,
            fix=f"check the files that {access.tool}'s settings name ({access.trust_command})",
        ) from error
    return context
