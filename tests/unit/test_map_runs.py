"""`cloche map` on a sandbox that is played: order, bounds, ends."""

import asyncio
import io
import json
from collections.abc import Callable
from io import FileIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cloche.cli import map_runs
from cloche.cli.lines import LineReader
from cloche.cli.map_request import Defaults
from cloche.cli.map_runs import Runs
from cloche.cli.map_view import Tally
from cloche.errors import InternalError, InvalidRequestError, UnavailableError
from cloche.model.abort import AbortController


class Play:
    """Stands in for a sandbox: `act` says what becomes of a code."""

    def __init__(self, act: Callable[[str], Any]) -> None:
        self.act = act
        self.started: list[str] = []
        self.running_count = self.most_running_count = 0

    async def run(self, code: str, context: Any, **fields: Any) -> Any:
        self.started.append(code)
        self.running_count += 1
        self.most_running_count = max(self.most_running_count, self.running_count)
        try:
            value = self.act(code)
            if asyncio.iscoroutine(value):
                value = await value
        finally:
            self.running_count -= 1
        return SimpleNamespace(value=value, context=context, fields=fields)


@pytest.fixture(autouse=True)
def _plain_results(monkeypatch: pytest.MonkeyPatch) -> None:
    def to_json(result: Any) -> dict[str, Any]:
        return {"ok": True, "value": result.value, "error_code": None}

    monkeypatch.setattr(map_runs, "result_to_json", to_json)


class Site:
    """A file of lines, a file of results, and what lies between."""

    def __init__(self, folder: Path, lines: list[Any], concurrency: int = 2) -> None:
        self.controller = AbortController()
        defaults = Defaults(folder, None, None, {}, True)
        self.runs = Runs(defaults, concurrency, self.controller.signal)
        self.tally = Tally()
        self.done_bytes = 0
        self.path = folder / "in.jsonl"
        self.path.write_text(
            "".join(f"{line if isinstance(line, str) else json.dumps(line)}\n" for line in lines)
        )
        self.out = folder / "out.jsonl"

    def results(self) -> list[Any]:
        return [json.loads(line) for line in self.out.read_text().splitlines()]

    async def run(self, sandbox: Play) -> None:
        def progress(size_bytes: int) -> None:
            self.done_bytes += size_bytes

        with FileIO(str(self.path), "rb") as source, FileIO(str(self.out), "wb") as output:
            reader = LineReader(source, 1_000_000)
            await self.runs.run(sandbox, reader, output, self.tally, progress)


def test_results_come_in_the_order_of_the_lines_with_their_ids(tmp_path: Path):
    async def take_turns(code: str) -> str:
        for _ in range((7 * int(code)) % 11):
            await asyncio.sleep(0)
        return code

    lines = [{"code": str(i), "id": {"n": [i]}} for i in range(200)]
    site = Site(tmp_path, lines, concurrency=5)
    sandbox = Play(take_turns)
    asyncio.run(site.run(sandbox))
    assert [(each["index"], each["id"], each["value"]) for each in site.results()] == [
        (i, {"n": [i]}, str(i)) for i in range(200)
    ]
    assert sandbox.most_running_count == 5
    assert site.done_bytes == site.path.stat().st_size


def test_what_is_wrong_with_a_line_is_its_result_and_stops_no_other(tmp_path: Path):
    def act(code: str) -> Any:
        errors = {
            "bad": InvalidRequestError("x: is bad", retry_safe=True),
            "host": UnavailableError("no", fact="f", fix="x"),
            "ours": InternalError("oh"),
        }
        if code in errors:
            raise errors[code]
        return code

    lines = [
        *("{oops", '{"id": 1}', "", "   "),
        *({"code": "bad", "id": 2}, {"code": "host", "allow_network": True}),
        *({"code": "ours"}, {"code": "1"}),
    ]
    site = Site(tmp_path, lines)
    asyncio.run(site.run(Play(act)))
    assert [
        (each["id"], each["error_code"], each.get("retry_safe")) for each in site.results()
    ] == [
        (None, "SANDBOX_INVALID_REQUEST", False),
        (1, "SANDBOX_INVALID_REQUEST", False),
        (2, "SANDBOX_INVALID_REQUEST", True),
        (None, "SANDBOX_UNAVAILABLE", True),
        (None, "SANDBOX_INTERNAL_ERROR", False),
        (None, None, None),
    ]
    assert site.tally.failed_count == 5
    assert "6 results" in site.tally.describe()
    assert "1 ok, 5 failed (3 SANDBOX_INVALID_REQUEST, " in site.tally.describe()


def test_what_the_host_cannot_do_for_the_command_itself_ends_it(tmp_path: Path):
    def act(code: str) -> Any:
        if code == "3":
            raise UnavailableError("no", fact="f", fix="x")
        return code

    site = Site(tmp_path, [{"code": str(i)} for i in range(9)], concurrency=1)
    with pytest.raises(UnavailableError):
        asyncio.run(site.run(Play(act)))
    assert [each["value"] for each in site.results()] == ["0", "1", "2"]


@pytest.mark.parametrize(("limit", "most"), [("WINDOW_PER_RUN_COUNT", 20), ("WINDOW_BYTES", 12)])
def test_behind_a_slow_run_only_a_window_of_lines_is_taken(
    limit: str, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(map_runs, limit, 10 if limit == "WINDOW_PER_RUN_COUNT" else 1_000_000)
    site = Site(tmp_path, [{"code": str(i)} for i in range(200)])
    seen: list[int] = []

    async def act(code: str) -> str:
        if code != "0":
            return "x" * 100_000
        for _ in range(2000):
            await asyncio.sleep(0)
        seen.append(len(sandbox.started))
        return "slow"

    sandbox = Play(act)
    asyncio.run(site.run(sandbox))
    assert 3 < seen[0] <= most
    assert len(site.results()) == 200  # and then it goes on


def test_the_signal_ends_what_runs_and_keeps_what_has_ended(tmp_path: Path):
    site = Site(tmp_path, [{"code": str(i)} for i in range(50)])

    async def act(code: str) -> str:
        if code == "5":
            while len(site.results()) < 5:
                await asyncio.sleep(0)
            site.controller.abort()
            await asyncio.sleep(30)
        return code

    sandbox = Play(act)
    asyncio.run(site.run(sandbox))
    assert [each["value"] for each in site.results()] == ["0", "1", "2", "3", "4"]
    assert sandbox.running_count == 0


def test_an_output_that_fails_ends_what_runs(tmp_path: Path):
    class Full(io.FileIO):
        def write(self, _: Any, /) -> int:
            raise OSError(28, "No space left on device")

    site = Site(tmp_path, [{"code": str(i)} for i in range(50)])

    async def act(code: str) -> str:
        await asyncio.sleep(0 if code == "0" else 30)
        return code

    sandbox = Play(act)

    async def run() -> None:
        with FileIO(str(site.path), "rb") as source, Full(str(site.out), "wb") as output:
            reader = LineReader(source, 1_000_000)
            await site.runs.run(sandbox, reader, output, site.tally, lambda _: None)

    with pytest.raises(OSError, match="No space left"):
        asyncio.run(run())
    assert sandbox.running_count == 0
