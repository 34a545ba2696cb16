"""A headless Chromium that a test drives as a user would, over its own debugging pipe.

Commands and answers are JSON objects, each ended by a NUL byte: to its descriptor 3, from its
descriptor 4. Source: the Chrome DevTools Protocol; chromium --remote-debugging-pipe.
"""

import json
import os
import select
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import pytest

from observer import descendants

_PATIENCE_S = 30
# The pipe comes as stdin and stdout, which any way to start a program can give.
_BY_PIPE = 'exec "$@" 3<&0 4>&1 0</dev/null 1>/dev/null 2>&1'
# Asks again until `ready()` holds, in the page: what React draws comes after the event.
_UNTIL = """new Promise((resolve, reject) => {
  const ends = Date.now() + 10000;
  const look = () => {
    const value = (%s);
    if (value) resolve(value);
    else if (Date.now() > ends) reject(new Error("never so: " + document.body.innerText));
    else setTimeout(look, 10);
  };
  look();
})"""


def require_chromium() -> str:
    """The browser's path; skips the current test where there is none."""
    found = shutil.which("chromium")
    if found is None:
        pytest.skip(
            "missing fact: chromium (not on the path)."
            " Fix: apt-get install --no-install-recommends chromium"
        )
    return found


class Browser:
    """One browser with one page; leaves no process and nothing outside `folder`.

    Attributes:
        errors: What the page has complained about so far: exceptions that nobody caught, errors
            and warnings on its console, resources that could not be loaded.
    """

    def __init__(self, folder: Path) -> None:
        command = [
            require_chromium(),
            "--headless",
            "--remote-debugging-pipe",
            f"--user-data-dir={folder}",
            "--no-first-run",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-breakpad",
            "--disable-gpu",
        ]
        if os.geteuid() == 0:
            command.append("--no-sandbox")  # Chromium refuses to make its sandbox as root
        self.errors: list[str] = []
        self._process = subprocess.Popen(
            ["sh", "-c", _BY_PIPE, "sh", *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "HOME": str(folder), "TMPDIR": str(folder)},
            start_new_session=True,
        )
        self._received = b""
        self._loaded_count = 0
        self._last_id = 0
        self._session: str | None = None

    def __enter__(self) -> Self:
        try:
            target = self._ask("Target.createTarget", url="about:blank")["targetId"]
            attached = self._ask("Target.attachToTarget", targetId=target, flatten=True)
            self._session = attached["sessionId"]
            for domain in ("Page", "Runtime", "Log"):
                self._ask(f"{domain}.enable")
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def open(self, address: str) -> None:
        """Goes to `address`; returns when the page has been loaded."""
        loaded_count = self._loaded_count
        failed = self._ask("Page.navigate", url=address).get("errorText")
        assert failed is None, f"{address}: {failed}"
        while self._loaded_count == loaded_count:
            self._receive()

    def until(self, expression: str) -> Any:
        """Waits until a JavaScript expression is truthy in the page; returns its JSON value."""
        answer = self._ask(
            "Runtime.evaluate",
            expression=_UNTIL % expression,
            awaitPromise=True,
            returnByValue=True,
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]["exception"]
        return answer["result"]["value"]

    def click(self, element: str) -> None:
        """Clicks with the mouse in the middle of an element, a JavaScript expression."""
        middle = self.until(
            f"(({{x, y, width, height}}) => ({{x: x + width / 2, y: y + height / 2}}))"
            f"(({element}).getBoundingClientRect())"
        )
        for kind in ("mousePressed", "mouseReleased"):
            self._ask("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **middle)

    def write(self, element: str, text: str) -> None:
        """Replaces what stands in a field by `text`, as if typed."""
        self.click(element)
        self.until(f"(({element}).select(), true)")
        self._ask("Input.insertText", text=text)

    def _ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._last_id += 1
        command = {"id": self._last_id, "method": method, "params": parameters}
        if self._session is not None:
            command["sessionId"] = self._session
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\0")
        self._process.stdin.flush()
        while (message := self._receive()).get("id") != self._last_id:
            pass
        assert "error" not in message, f"{method}: {message['error']}"
        result: dict[str, Any] = message["result"]
        return result

    def _receive(self) -> dict[str, Any]:
        """The next answer or event; events are taken note of on the way."""
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        deadline = time.monotonic() + _PATIENCE_S
        while b"\0" not in self._received:
            ready, _, _ = select.select([descriptor], [], [], deadline - time.monotonic())
            assert ready, f"the browser said nothing for {_PATIENCE_S} s"
            chunk = os.read(descriptor, 1 << 16)
            assert chunk, "the browser has ended"
            self._received += chunk
        text, _, self._received = self._received.partition(b"\0")
        message: dict[str, Any] = json.loads(text)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event: str | None, parameters: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded_count += 1
        elif event == "Runtime.exceptionThrown":
            thrown = parameters["exceptionDetails"]
            self.errors.append(thrown.get("exception", thrown).get("description", thrown["text"]))
        elif event == "Runtime.consoleAPICalled":
            if parameters["type"] in ("error", "warning", "assert"):
                said = [str(each.get("value", each)) for each in parameters["args"]]
                self.errors.append(" ".join(said))
        elif event == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            entry = parameters["entry"]
            self.errors.append(f"{entry['text']} {entry.get('url', '')}")

    def _end(self) -> None:
        """Kills it with all that it has started, and waits for their end."""
        family = {self._process.pid, *descendants(self._process.pid)}
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for pid in family:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()
        deadline = time.monotonic() + _PATIENCE_S
        while family & set(descendants()):
            assert time.monotonic() < deadline, "the browser does not die"
            time.sleep(0.01)
