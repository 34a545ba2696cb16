"""The transformer's box: JavaScript and TypeScript snippets in, modules out.

One box per trust domain, kept between runs; the service in it reads every text in a fork of its
own (`guest/transformer.py`). A cold start is paid once.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from cloche.backends.base import ControlFeed, Sinks
from cloche.environments import roots
from cloche.errors import ClocheError, InternalError
from cloche.frames import FrameError, decode_json, encode_request
from cloche.model.outcome import Cause
from cloche.model.plan import BoxPlan, Command
from cloche.model.policy import MAX_TIMEOUT_MS, Limits

if TYPE_CHECKING:
    from cloche.backends.base import Backend, Box

_ANSWER_LIMIT_BYTES = 256 * 1024 * 1024
_ANSWER_TIMEOUT_S = 10.0
_KNOWN_LIMIT_COUNT = 1_000
_KNOWN_LIMIT_CHARACTERS = 4 * 1024 * 1024
_LIMITS = Limits(timeout_ms=MAX_TIMEOUT_MS, memory_mb=1024, pids_count=8)
_ARGV = ("/usr/bin/python3", "-I", "-S", "-B", "/opt/cloche/transformer.pyc")


@dataclass(frozen=True, slots=True)
class Module:
    """A snippet as a module; the fields are those of `cloche.source.Transformed`."""

    code: str
    map: dict[str, Any]
    imports: list[Any]
    check: str | None
    suspect: list[int] | None
    unclear: bool
    erased: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """A snippet that is not run: why, and where in the caller's text."""

    message: str
    line: int | None
    column: int | None


class _KnownModules:
    """What became of the texts that came last: a rule is run again and again.

    A text's module depends on nothing else, and whoever subverts the parser by a text chooses
    the module of that very text alone.
    """

    def __init__(self) -> None:
        self._modules: OrderedDict[bytes, Module] = OrderedDict()
        self._kept_characters = 0

    @staticmethod
    def _key(code: str, language: str) -> bytes:
        return hashlib.sha256(f"{language}\0{code}".encode()).digest()

    def get(self, code: str, language: str) -> Module | None:
        key = self._key(code, language)
        if key in self._modules:
            self._modules.move_to_end(key)
        return self._modules.get(key)

    def keep(self, code: str, language: str, module: Module) -> None:
        size = len(module.code)
        if size > _KNOWN_LIMIT_CHARACTERS // 16:
            return
        key = self._key(code, language)
        if key in self._modules:
            return
        self._modules[key] = module
        self._kept_characters += size
        while (
            self._kept_characters > _KNOWN_LIMIT_CHARACTERS
            or len(self._modules) > _KNOWN_LIMIT_COUNT
        ):
            _, oldest = self._modules.popitem(last=False)
            self._kept_characters -= len(oldest.code)


class Transformer:
    """Asks the box. Belongs to one event loop."""

    def __init__(self, backend: Backend) -> None:
        """Starts nothing yet."""
        self._backend = backend
        self._known = _KnownModules()
        self._box: Box | None = None
        self._feed: ControlFeed | None = None
        self._serving: asyncio.Task[None] | None = None
        self._starting: asyncio.Future[None] | None = None
        self._ids = itertools.count(1)
        self._pending: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._buffer = bytearray()
        self._failure: ClocheError | None = None  # of the last box that ended

    async def start(self) -> None:
        """Starts the box where none is running. Whoever stops waiting does not stop the start."""
        if self._feed is not None:
            return
        if self._starting is None or self._starting.done():
            self._starting = asyncio.ensure_future(self._start())
            self._starting.add_done_callback(lambda task: task.cancelled() or task.exception())
        await asyncio.shield(self._starting)

    async def _start(self) -> None:
        plan = BoxPlan(roots.transformer_environment(), _LIMITS)
        self._box = await self._backend.create(plan)
        connected = asyncio.Event()

        def connect(feed: ControlFeed) -> None:
            self._feed = feed
            connected.set()

        self._buffer.clear()
        self._serving = asyncio.create_task(
            self._serve(self._box, Sinks(_drop, _drop, self._take, connect), connected)
        )
        await connected.wait()

    async def _serve(self, box: Box, sinks: Sinks, connected: asyncio.Event) -> None:
        failure: ClocheError = InternalError("the transformer's box was closed", retry_safe=True)
        try:
            outcome = await box.exec(
                Command(_ARGV, env={"LANG": "C.UTF-8"}), stdin=b"", control=b"", sinks=sinks
            )
            ending = f"{outcome.cause}, exit code {outcome.exit_code}"
            failure = InternalError(f"the transformer's box ended ({ending})", retry_safe=True)
        except ClocheError as error:
            failure = error
        except OSError as error:
            failure = InternalError(f"the transformer's box: {error}", retry_safe=True)
        finally:
            self._feed, self._failure = None, failure
            connected.set()  # whoever waits for it finds the failure
            for future in self._pending.values():
                if not future.done():
                    future.set_exception(failure)
            self._pending.clear()
            await box.destroy()

    def _take(self, chunk: bytes) -> None:
        self._buffer += chunk
        while len(self._buffer) >= 4:
            length = int.from_bytes(self._buffer[:4], "big")
            if length > _ANSWER_LIMIT_BYTES:
                self._kill()
                return
            if len(self._buffer) < 4 + length:
                return
            body = bytes(self._buffer[4 : 4 + length])
            del self._buffer[: 4 + length]
            try:
                answer = decode_json(body)
                future = self._pending.pop(answer["id"])
            except (FrameError, KeyError, TypeError):
                self._kill()
                return
            if not future.done():
                future.set_result(answer)

    def _kill(self) -> None:
        if self._box is not None:
            self._box.kill(Cause.ABORTED)

    async def transform(self, code: str, language: str) -> Module | Refusal:
        """Turns a snippet into a module.

        Raises:
            InternalError: the box was lost twice.
            UnavailableError: it cannot be made.
        """
        kept = self._known.get(code, language)
        if kept is not None:
            return kept
        try:
            answer = await self._ask(code, language)
        except InternalError:
            answer = await self._ask(code, language)  # its box may have died of a neighbour's text
        try:
            if answer["ok"] is True:
                module = Module(
                    str(answer["code"]),
                    dict(answer["map"]),
                    list(answer["imports"]),
                    None if answer["check"] is None else str(answer["check"]),
                    None if answer["suspect"] is None else list(answer["suspect"]),
                    answer["unclear"] is True,
                    answer.get("erased") is True,
                )
                self._known.keep(code, language, module)
                return module
            return Refusal(
                str(answer["message"])[:8192],
                _position(answer["line"]),
                _position(answer["column"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InternalError("the transformer's answer is malformed", retry_safe=True) from error

    async def _ask(self, code: str, language: str) -> dict[str, Any]:
        await self.start()
        feed = self._feed
        if feed is None:
            assert self._failure is not None, "a box that is not connected has ended"
            raise self._failure
        identity = next(self._ids)
        future: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()
        self._pending[identity] = future
        feed.write(encode_request({"id": identity, "code": code, "language": language}))
        try:
            async with asyncio.timeout(_ANSWER_TIMEOUT_S):
                return await future
        except TimeoutError:
            self._kill()
            if self._serving is not None:  # its end, so that the next question gets a new box
                await asyncio.wait([self._serving])
            raise InternalError("the transformer does not answer", retry_safe=True) from None

    async def close(self) -> None:
        """Ends the box. Idempotent."""
        if self._starting is not None:
            await asyncio.wait([self._starting])
        serving, self._serving = self._serving, None
        if serving is None:
            return
        self._kill()
        with contextlib.suppress(ClocheError, asyncio.CancelledError):
            await serving


def _drop(_: bytes) -> None:
    """The service itself prints nothing; a subverted one is not listened to."""


def _position(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
