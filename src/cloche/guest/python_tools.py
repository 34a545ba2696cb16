"""The global `tools` of a Python snippet; executed by `python.py` when a request names tools.

`await tools.name(argument, key=value)` sends a call on fd 4 and waits for its answer on fd 3, a
pipe, which is read only while calls wait. As with any coroutine, nothing happens before the await.
"""

import asyncio
import os
from _json import encode_basestring, make_encoder, make_scanner

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine
    from typing import Any


class ToolError(Exception):
    """A tool failed; the message is all that is known."""


ToolError.__module__ = "builtins"  # so that a traceback calls it by its plain name


class Channel:
    """Calls that wait for their answers, in whatever loops the guest has."""

    def __init__(self, request: "dict[str, Any]", rare: "Any", syntax: object) -> None:
        self.request = request
        self.rare = rare
        self.scan: Any = make_scanner(syntax)  # type: ignore[arg-type]
        self.pending: dict[int, asyncio.Future[Any]] = {}
        self.waiting: dict[asyncio.AbstractEventLoop, int] = {}
        self.last = 0
        self.data = b""
        os.set_blocking(3, False)

    def ask(self, name: str, args: "list[Any]", kwargs: "dict[str, Any]") -> "asyncio.Future[Any]":
        """Send a call; the future gets its answer."""
        texts = self.json(args, "args"), self.json(kwargs, "kwargs")
        loop = asyncio.get_running_loop()
        self.last += 1
        number = self.last
        future = self.pending[number] = loop.create_future()
        if loop not in self.waiting:
            self.waiting[loop] = 0
            loop.add_reader(3, self.read)
        self.waiting[loop] += 1
        future.add_done_callback(lambda _: self.forget(number, loop))
        body = (
            f'{{"call":{number},"tool":{encode_basestring(name)},'
            f'"args":{texts[0]},"kwargs":{texts[1]}}}'
        ).encode("utf-8", "backslashreplace")
        data = bytes.fromhex(self.request["nonce"]) + len(body).to_bytes(4, "big") + body
        while data:
            data = data[os.write(4, data) :]
        return future

    def json(self, value: object, path: str) -> str:
        """The JSON of arguments, by the rules for values."""
        try:
            plain = self.rare.walk(value, path, [], self.request["depth_limit"])
        except self.rare.NoFormError as error:
            raise TypeError(str(error)) from None
        except self.rare.TooLargeError as error:
            raise ValueError(f"{path}: {error}") from None
        encode = make_encoder(
            {}, self.rare.no_default, encode_basestring, None, ":", ",", False, False, False
        )
        text = "".join(encode(plain, 0))
        limit = self.request["value_limit_bytes"]
        if len(text) > limit or len(text.encode("utf-8", "backslashreplace")) > limit:
            raise ValueError(f"{path}: the value is larger than {limit} bytes")
        return text

    def forget(self, number: int, loop: asyncio.AbstractEventLoop) -> None:
        """Read no more in a loop where nothing waits."""
        self.pending.pop(number, None)
        self.waiting[loop] -= 1
        if self.waiting[loop] == 0:
            del self.waiting[loop]
            loop.remove_reader(3)

    def read(self) -> None:
        """Take what has come; hand out the answers that are whole."""
        try:
            chunk = os.read(3, 1 << 20)
        except BlockingIOError:
            return  # another loop of the guest's was faster
        if not chunk:
            asyncio.get_running_loop().remove_reader(3)
            return
        self.data += chunk
        while len(self.data) >= 4:
            end = 4 + int.from_bytes(self.data[:4], "big")
            if len(self.data) < end:
                return
            answer = self.scan(self.data[4:end].decode(), 0)[0]
            self.data = self.data[end:]
            future = self.pending.get(answer["answer"])
            if future is not None:
                future.get_loop().call_soon_threadsafe(settle, future, answer)


def settle(future: "asyncio.Future[Any]", answer: "dict[str, Any]") -> None:
    """Give a call its answer."""
    if future.done():
        return
    if answer["ok"]:
        future.set_result(answer.get("value"))
    else:
        future.set_exception(ToolError(answer["error"]["message"]))


def make_tools(request: "dict[str, Any]", rare: "Any", syntax: object) -> object:
    """An object with a coroutine function for each tool, and nothing that can be set."""
    channel = Channel(request, rare, syntax)

    def tool(name: str) -> "Callable[..., Coroutine[Any, Any, Any]]":
        async def call(*args: object, **kwargs: object) -> object:
            return await channel.ask(name, list(args), kwargs)

        call.__name__ = call.__qualname__ = name
        return call

    methods = {name: staticmethod(tool(name)) for name in request["tools"]}
    return type("tools", (), {"__slots__": (), **methods})()
