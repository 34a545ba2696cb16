"""Result: what it tells beside the value."""

from __future__ import annotations

import dataclasses
import logging

from cloche.model.snippet import SandboxResult
from cloche.testing.claims import describe, has_value, holds, is_ok, same
from cloche.testing.subject import Subject, promise

FIELDS = frozenset({
    "ok", "value", "stdout", "stderr", "output", "duration_ms", "queue_ms", "exit_code", "signal",
    "error", "error_code", "error_line", "error_column", "error_stack", "stdout_bytes",
    "stderr_bytes", "stdout_truncated", "stderr_truncated", "files", "denied", "usage", "runtime",
    "isolation", "warm", "run_id",
})  # fmt: skip
BUSY = {
    "javascript": "const t = Date.now(); while (Date.now() - t < 300); 1",
    "python": "n = 0\nwhile n < 1500000:\n    n += 1\n1",
}


@promise(1201)
async def a_result_is_frozen_and_complete(subject: Subject) -> None:
    """It has all documented fields, and none can be changed.

    "`SandboxResult` (frozen): `ok`, `value`, `stdout`, …"
    """
    result = await subject.run("1")
    holds(isinstance(result, SandboxResult), f"it is a {type(result).__name__}")
    missing = FIELDS - {field.name for field in dataclasses.fields(result)}
    holds(not missing, f"missing: {sorted(missing)}")
    try:
        result.ok = False  # type: ignore[misc]
    except dataclasses.FrozenInstanceError:
        pass
    else:
        raise AssertionError("it can be changed")
    same(dict(result.files), {}, "files")
    same(result.denied, (), "denied")


@promise(1202)
async def the_duration_is_that_of_the_code(subject: Subject) -> None:
    """`duration_ms` is about as long as the code took.

    "`timeout_ms`: wall clock from the start of the code to the converted result."
    """
    if "javascript" in subject.languages:
        result = await subject.run(BUSY["javascript"], language="javascript")
        holds(295 <= result.duration_ms < 1500, describe(result))
    for _ in range(3):
        quick = await subject.run("1")
        if quick.duration_ms < 250:
            return
    raise AssertionError(f"nothing took {quick.duration_ms} ms")


@promise(1203)
async def usage_is_measured(subject: Subject) -> None:
    """CPU time and the peak of memory are there, and follow what the code did.

    "`usage` (cpu_ms, peak_memory_bytes)."
    """
    async for result in subject.each(BUSY, timeout_ms=20_000):
        has_value(result, 1)
        least_ms = min(20.0, result.duration_ms / 3)
        holds(result.usage.cpu_ms >= least_ms, f"{result.usage}, after {result.duration_ms} ms")
        holds(result.usage.peak_memory_bytes > 1 << 20, f"{result.usage}")


@promise(1204)
async def the_runtime_is_named(subject: Subject) -> None:
    """`runtime` names what ran the code, with its version.

    "`runtime` (name, version)."
    """
    async for result in subject.each({"javascript": "1", "python": "1"}):
        is_ok(result)
        runtime = result.runtime
        holds(bool(runtime.name) and any(c.isdigit() for c in runtime.version), f"{runtime}")
        if subject.runtimes:
            holds(runtime.name in subject.runtimes, f"{runtime} is none of {subject.runtimes}")


@promise(1205)
async def each_run_has_an_id(subject: Subject) -> None:
    """`run_id` is another one for every run, whatever became of it.

    "`warm`, `run_id`."
    """
    bad = "1/0" if subject.language == "python" else "throw 1"
    ids = [(await subject.run(code)).run_id for code in ("1", "1", bad, "= =", bad)]
    holds(len(set(ids)) == len(ids) and all(len(one) >= 16 for one in ids), f"{ids}")


@promise(1206)
async def the_logger_hears_of_runs_and_never_their_text(subject: Subject) -> None:
    """The caller's logger is told the outcome of each run, and nothing that the code said.

    "attributes: …; never code or values" (the same holds for the `logger`).
    """
    records: list[str] = []
    logger = logging.Logger("the caller's own", logging.DEBUG)
    handler = logging.Handler()
    handler.emit = lambda record: records.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    code = (
        "print('printed')\n'value'"
        if subject.language == "python"
        else "console.log('printed'); 'value'"
    )
    result = await subject.run(code, {"given": "context"}, logger=logger)
    has_value(result, "value")
    told = "\n".join(records)
    holds(result.run_id in told, f"the run is not in {told!r}")
    for word in ("printed", "value", "given", "context"):
        holds(word not in told, f"{word} in {told!r}")
