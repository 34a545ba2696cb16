"""Egress of a box: every connect of it arrives here, and goes on only where the rules say so.

Theory of operation. In the box all IPv4 addresses are its own (see `launcher/network.py`), and
the sockets that listen there are served by this process. The box's names get placeholders for
addresses (`names`). The local address of an accepted connection is the one that the box meant: a
placeholder stands for its name, which is looked up once per box, on the host; every address is
checked (`addresses`) right before it is connected to. Where a name was allowed, the first bytes
of TLS must name it too (`hello`). Then bytes are passed on, both ways, counted.

Nothing of the box is parsed here but DNS questions and the first bytes of TLS, each in one form.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from ipaddress import IPv4Address
from socket import IPPROTO_TCP, TCP_NODELAY
from typing import TYPE_CHECKING, Any, Final, Protocol

from cloche.egress import dialling
from cloche.egress.addresses import IPAddress, refusal
from cloche.egress.names import (
    NAMES_LIMIT_COUNT,
    QUERY_BYTES_LIMIT,
    Placeholders,
    ResponseCode,
    answer,
)
from cloche.egress.rules import is_name
from cloche.egress.splice import RefusedError, read_tls_start, reset, splice
from cloche.linux.netns import CaughtSockets, own_addresses

if TYPE_CHECKING:
    import socket

    from cloche.egress.rules import EgressRules

Resolve = Callable[[str], Awaitable[Sequence[str]]]
Dial = Callable[[str, int], Awaitable["socket.socket"]]

TLS_PORT: Final = 443
DENIED_LIMIT_COUNT: Final = 100
CONNECT_TIMEOUT_S: Final = 10.0
RESOLVE_TIMEOUT_S: Final = 10.0
_LOOKUPS_COUNT: Final = 4
# A flood of questions costs Cloche little: after so many it is not listened to for a while.
_QUESTIONS_COUNT: Final = 32
_QUESTIONS_PAUSE_S: Final = 0.01
_ACCEPT_PAUSE_S: Final = 0.1


@dataclass(frozen=True, slots=True)
class Decision:
    """What was decided about one connection, or about one name that was refused.

    Attributes:
        host: The name, or the address where the box named none; printable.
        port: None where a name was asked for, and refused.
        allowed: It was, or would have been, connected.
        reason: Why it was refused, or could not be connected; empty otherwise.
        address: The one that was connected to; empty where none was.
    """

    host: str
    port: int | None
    allowed: bool
    reason: str = ""
    address: str = ""

    def __str__(self) -> str:
        place = self.host if self.port is None else f"{self.host}:{self.port}"
        return f"{place} ({self.reason})" if self.reason else place


class NetworkedBox(Protocol):
    """The part of a box that is needed: see `backends.base.Box.catch`."""

    async def catch(self) -> CaughtSockets:
        """The box's sockets, to be served and closed."""
        ...


async def open_egress(
    box: NetworkedBox, rules: EgressRules, *, on_decision: Callable[[Decision], None] | None = None
) -> TransparentEgress:
    """Serves a box's network from now on; the caller closes it.

    Raises:
        InternalError: the box was lost.
        ValueError: the box does not catch every port of the rules.
    """
    sockets = await box.catch()
    try:
        egress = TransparentEgress(rules, sockets, on_decision=on_decision)
    except BaseException:
        sockets.close()
        raise
    egress.start()
    return egress


class TransparentEgress:
    """Serves the network of one box.

    Args:
        rules: What the box may reach; see `rebind`.
        sockets: The box's; closed with this.
        resolve: The addresses of a name; raises OSError where it has none.
        dial: Connects to an address; the socket is non-blocking.
        own_addresses: Those of this host, asked for at each connection.
        on_decision: Told of each allowed connection, and of each refusal that is kept.

    Raises:
        ValueError: the sockets do not catch every port of the rules.
    """

    def __init__(
        self,
        rules: EgressRules,
        sockets: CaughtSockets,
        *,
        resolve: Resolve = dialling.resolve,
        dial: Dial = dialling.dial,
        own_addresses: Callable[[], Collection[IPAddress]] = own_addresses,
        on_decision: Callable[[Decision], None] | None = None,
    ) -> None:
        self._sockets = sockets
        self._resolve = resolve
        self._dial = dial
        self._own_addresses = own_addresses
        self._on_decision = on_decision
        self._placeholders = Placeholders()
        self._denied: dict[str, None] = {}
        self._lookups: dict[str, asyncio.Future[tuple[str, ...]]] = {}
        self._lookup_slots = asyncio.Semaphore(_LOOKUPS_COUNT)
        self._connections: set[asyncio.Task[None]] = set()
        self._accepted_count = 0
        self._questions_left_count = 0
        self._is_accepting = False
        self._is_closed = False
        self.passed_bytes = 0
        self.rebind(rules)

    def rebind(self, rules: EgressRules) -> None:
        """Other rules from now on, for a box that was made before it was known what it may do.

        Raises:
            ValueError: the box does not catch every port of them.
        """
        missing = [str(port) for port in rules.ports if port not in self._sockets.listeners]
        if missing:
            raise ValueError(f"the box does not catch port {', '.join(missing)}")
        self._rules = rules

    @property
    def denied(self) -> tuple[str, ...]:
        """What was refused and why, each once, the first hundred; printable."""
        return tuple(self._denied)

    def start(self) -> None:
        """Serves from now on. Requires: a running loop, the one of `close`."""
        self._loop = asyncio.get_running_loop()
        self._sockets.dns.setblocking(False)
        self._listen_for_questions()
        for listener in self._sockets.listeners.values():
            listener.setblocking(False)
        self._accept_more()

    async def close(self) -> None:
        """Ends every connection and closes the sockets; idempotent."""
        if not self._is_closed:
            self._is_closed = True
            self._stop_accepting()
            if self._sockets.dns.fileno() >= 0:
                asyncio.get_running_loop().remove_reader(self._sockets.dns)
            self._sockets.close()
        ending: list[asyncio.Future[Any]] = [*self._connections, *self._lookups.values()]
        for each in ending:
            each.cancel()
        if ending:
            await asyncio.wait(ending)

    # --- names

    def _listen_for_questions(self) -> None:
        if not self._is_closed:
            self._questions_left_count = _QUESTIONS_COUNT
            self._loop.add_reader(self._sockets.dns, self._answer_questions)

    def _answer_questions(self) -> None:
        while self._questions_left_count:
            try:
                query, sender = self._sockets.dns.recvfrom(QUERY_BYTES_LIMIT + 1)
            except OSError:  # there are no more
                return
            self._questions_left_count -= 1
            told = answer(query, self._find)
            if told is not None:
                with suppress(OSError):  # the box does not take it: its loss
                    self._sockets.dns.sendto(told, sender)
        self._loop.remove_reader(self._sockets.dns)
        self._loop.call_later(_QUESTIONS_PAUSE_S, self._listen_for_questions)

    def _find(self, name: str) -> IPv4Address | ResponseCode:
        if not is_name(name):
            self._deny(name, None, "no full host name")
            return ResponseCode.NO_SUCH_NAME
        why = self._rules.decide(name)
        if why is not None:
            self._deny(name, None, why)
            return ResponseCode.NO_SUCH_NAME
        address = self._placeholders.give(name)
        if address is None:
            self._deny(name, None, f"over {NAMES_LIMIT_COUNT} names")
            return ResponseCode.FAILED
        return address

    # --- connections

    def _accept_more(self) -> None:
        if not self._is_closed and not self._is_accepting:
            self._is_accepting = True
            for port, listener in self._sockets.listeners.items():
                if listener.fileno() >= 0:
                    self._loop.add_reader(listener, self._accept, port, listener)

    def _stop_accepting(self) -> None:
        if self._is_accepting:
            self._is_accepting = False
            for listener in self._sockets.listeners.values():
                if listener.fileno() >= 0:
                    self._loop.remove_reader(listener)

    def _accept(self, port: int, listener: socket.socket) -> None:
        if not self._is_accepting:  # since this call was due
            return
        try:
            guest, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError:  # no descriptor is left: others may give some back
            self._stop_accepting()
            self._loop.call_later(_ACCEPT_PAUSE_S, self._accept_more)
            return
        guest.setblocking(False)
        self._accepted_count += 1
        if self._accepted_count > self._rules.limit_count:
            host, _ = self._meant(guest)
            self._deny(host, port, f"over {self._rules.limit_count} connections")
            reset(guest)
            self._stop_accepting()
            for each in self._sockets.listeners.values():
                each.close()  # from now on the box's own kernel refuses
            return
        task = self._loop.create_task(self._serve(guest, port))
        self._connections.add(task)
        task.add_done_callback(partial(self._on_served, guest))
        if len(self._connections) >= self._rules.concurrent_count:
            self._stop_accepting()

    def _on_served(self, guest: socket.socket, task: asyncio.Task[None]) -> None:
        guest.close()  # also where the task was ended before its first step
        self._connections.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            context = {"message": "egress of a box failed", "exception": error}
            self._loop.call_exception_handler(context)
        if len(self._connections) < self._rules.concurrent_count:
            self._accept_more()

    def _meant(self, guest: socket.socket) -> tuple[str, bool]:
        """The host that a connection is meant for, and whether it is a name."""
        address = IPv4Address(guest.getsockname()[0])
        name = self._placeholders.name_of(address)
        return (str(address), False) if name is None else (name, True)

    async def _serve(self, guest: socket.socket, port: int) -> None:
        """Judges one connection of the box and passes it on; it is closed at the end."""
        host, has_name = self._meant(guest)
        upstream: socket.socket | None = None
        ended = False
        try:
            guest.setsockopt(IPPROTO_TCP, TCP_NODELAY, 1)
            self._judge(host, port, has_name=has_name)
            name = host if has_name and not self._rules.any_public else None
            start = b""
            if name is not None and port == TLS_PORT:
                start, name = await read_tls_start(guest, name), None
            upstream = await self._connect(host, port, has_name=has_name)
            await splice(guest, upstream, self._spend, start=start, name=name)
            ended = True
        except* RefusedError as refused:
            self._deny(host, port, str(refused.exceptions[0]))
        except* OSError:
            pass  # one side is gone or silent: so is the other, from now on
        finally:
            for channel in (guest, upstream):
                if channel is not None:
                    channel.close() if ended else reset(channel)

    def _judge(self, host: str, port: int, *, has_name: bool) -> None:
        why = None if has_name else refusal(host, self._own_addresses())
        why = why or self._rules.decide(host, port)
        if why is None and self.passed_bytes >= self._rules.limit_bytes:
            why = self._over_bytes()
        if why is not None:
            raise RefusedError(why)

    def _over_bytes(self) -> str:
        return f"over {self._rules.limit_bytes} bytes"

    def _spend(self, count_bytes: int) -> None:
        self.passed_bytes += count_bytes
        if self.passed_bytes > self._rules.limit_bytes:
            raise RefusedError(self._over_bytes())

    async def _connect(self, host: str, port: int, *, has_name: bool) -> socket.socket:
        """A connection to a checked address.

        Raises:
            RefusedError: every address is refused, or there is none.
            OSError: none of them answers.
        """
        addresses: tuple[str, ...] = (host,)
        if has_name:
            try:
                addresses = await self._look_up(host)
            except OSError:
                raise RefusedError("has no address") from None
        own = self._own_addresses()
        named = has_name and self._rules.names(host)
        reasons = {address: refusal(address, own, named=named) for address in addresses}
        allowed = [address for address, why in reasons.items() if why is None]
        if not allowed:
            found = ", ".join(dict.fromkeys(f"{why} {at}" for at, why in reasons.items()))
            raise RefusedError(found or "has no address")
        failure = OSError()
        for address in allowed:
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    upstream = await self._dial(address, port)
            except OSError as error:  # a TimeoutError, too
                failure = error
            else:
                self._tell(Decision(host, port, allowed=True, address=address))
                return upstream
        self._tell(Decision(host, port, allowed=True, reason=failure.strerror or "no answer"))
        raise failure

    async def _look_up(self, name: str) -> tuple[str, ...]:
        """Looked up once; a failure is forgotten."""
        lookup = self._lookups.get(name)
        if lookup is None:
            lookup = self._lookups[name] = self._loop.create_task(self._resolve_one(name))
        try:
            return await asyncio.shield(lookup)
        except OSError:
            self._lookups.pop(name, None)
            raise

    async def _resolve_one(self, name: str) -> tuple[str, ...]:
        async with self._lookup_slots, asyncio.timeout(RESOLVE_TIMEOUT_S):
            return tuple(await self._resolve(name))

    # --- telling

    def _deny(self, host: str, port: int | None, reason: str) -> None:
        decision = Decision(host, port, allowed=False, reason=reason)
        if len(self._denied) < DENIED_LIMIT_COUNT and str(decision) not in self._denied:
            self._denied[str(decision)] = None
            self._tell(decision)

    def _tell(self, decision: Decision) -> None:
        if self._on_decision is not None:
            self._on_decision(decision)
