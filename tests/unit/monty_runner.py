"""Runs snippets in one Monty engine: a JSON list of runs on stdin, a list of results on stdout.

A run is `{"request": …, "answers": [[…], …]}`: for each time that the engine waits, the answers
that it gets; a text `{"tool": …}` among them is answered by what the tool was called with. A
result is `{"body": …, "stdout": …, "stderr": …, "calls": […], "waits": […]}`; a body that came
with `EngineBroken` has `"broken": true`.

In a process of its own, since the engine's package keeps its threads and descriptors for ever.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "src"))

from cloche.snippets.engines.engine import EngineBroken
from cloche.snippets.engines.monty import MontyEngine


class Host:
    """A worker host that follows a script."""

    def __init__(self, answers: list[list[Any]]) -> None:
        self.text = {"stdout": "", "stderr": ""}
        self.pieces: list[list[str]] = []
        self.calls: list[list[Any]] = []
        self.waits: list[float | None] = []
        self._answers = answers

    def output(self, stream: str, text: str) -> None:
        self.text[stream] += text
        self.pieces.append([stream, text])

    def call(self, identifier: int, tool: str, args: str, kwargs: str) -> None:
        self.calls.append([identifier, tool, json.loads(args), json.loads(kwargs)])

    def wait(self, timeout_s: float | None) -> list[str]:
        self.waits.append(timeout_s)
        if not self._answers:
            time.sleep(timeout_s or 0)
            return []
        return [json.dumps(one) for one in self._answers.pop(0)]


def run(engine: MontyEngine, one: dict[str, Any]) -> dict[str, Any]:
    host = Host(one.get("answers", []))
    if one.get("kill_interpreter"):
        engine.prepare()
        os.kill(engine._session.worker_pid, 9)
    started, broken = time.perf_counter(), False
    try:
        body = engine.run(one["request"], host)
    except EngineBroken as error:
        body, broken = error.body, True
    ended = time.perf_counter()
    if not broken and one.get("prepare", True):
        engine.prepare()
    return {
        "body": json.loads(body),
        "text": body if len(body) < 10_000 else body[:64],
        **host.text,
        "pieces": host.pieces[:100],
        "calls": host.calls,
        "waits": host.waits,
        "broken": broken,
        "run_ms": (ended - started) * 1000,
    }


def main() -> None:
    runs = json.load(sys.stdin)
    engine = MontyEngine()
    results = []
    for one in runs:
        results.append(run(engine, one))
        if results[-1]["broken"]:
            engine = MontyEngine()
    engine.close()
    json.dump(results, sys.stdout)


main()
