"""What a result tells beside the value: times, usage, runtime, isolation."""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Any

import pytest

import cloche
from cloche import Strength

LANGUAGES = ("javascript", "typescript", "python")
FIELDS = {
    "ok", "value", "stdout", "stderr", "output", "duration_ms", "queue_ms", "exit_code", "signal",
    "error", "error_code", "error_line", "error_column", "error_stack", "stdout_bytes",
    "stderr_bytes", "stdout_truncated", "stderr_truncated", "files", "denied", "usage", "runtime",
    "isolation", "warm", "run_id",
}  # fmt: skip
CONTROLS = {
    "uid", "capabilities", "no_new_privs", "seccomp", "processes", "network", "root", "scratch",
    "memory", "pids", "cpu", "open_files", "core_dumps",
}  # fmt: skip


def test_a_result_has_the_documented_fields_and_is_frozen(sandbox: Any) -> None:
    result = sandbox.run("1")
    assert {field.name for field in dataclasses.fields(result)} == FIELDS
    with pytest.raises(dataclasses.FrozenInstanceError):
        result.ok = False
    with pytest.raises(TypeError):
        result.files["x"] = b""
    assert result.files == {} and result.denied == ()
    assert dataclasses.asdict(dataclasses.replace(result, files={}, isolation=None))["ok"]


@pytest.mark.parametrize("language", LANGUAGES)
def test_the_duration_is_that_of_the_code(sandbox: Any, language: str) -> None:
    code = {
        "python": "import asyncio\nawait asyncio.sleep(0.3)",
    }.get(language, "await new Promise(r => setTimeout(r, 300))")
    sandbox.run("1", language=language)  # what runs the language is up, and needs no waiting for
    started = time.monotonic()
    result = sandbox.run(code, language=language)
    taken_ms = (time.monotonic() - started) * 1000
    assert 290 < result.duration_ms <= taken_ms
    assert 0 <= result.queue_ms < 100
    assert result.usage.cpu_ms < 290


def test_a_timeout_lasts_as_long_as_it_says(sandbox: Any) -> None:
    for language, code in (("javascript", "while (true);"), ("python", "while True: pass")):
        result = sandbox.run(code, language=language, timeout_ms=400)
        assert 400 <= result.duration_ms < 900
        assert (result.exit_code, result.signal) == (None, 9)


@pytest.mark.kinds("process")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "const before = process.cpuUsage();\n"
         "while (process.cpuUsage(before).user < 200_000); 1"),
        ("python", "import time\nt = time.process_time()\n"
         "while time.process_time() - t < 0.2: pass\n1"),
        ("python", "import os, time\nif os.fork() == 0:\n    t = time.process_time()\n"
         "    while time.process_time() - t < 0.2: pass\n    os._exit(0)\nos.wait()\n1"),
    ],
)  # fmt: skip
def test_cpu_time_is_that_of_everything_the_run_started(
    sandbox: Any, language: str, code: str
) -> None:
    result = sandbox.run(code, language=language)
    assert result.ok, result.error
    assert 120 < result.usage.cpu_ms < 5000


@pytest.mark.kinds("process")
def test_the_peak_of_memory_grows_with_what_is_held(sandbox: Any) -> None:
    small = sandbox.run("1", language="python").usage.peak_memory_bytes
    code = "len(bytearray(b'x') * (40 << 20))"
    large = sandbox.run(code, language="python").usage.peak_memory_bytes
    assert small > 1 << 20
    assert small + (30 << 20) < large <= 128 << 20


@pytest.mark.kinds("process")
def test_the_runtime_is_named_with_the_version_that_ran(sandbox: Any) -> None:
    script = sandbox.run("Bun.version")
    assert (script.runtime.name, script.runtime.version) == ("bun", script.value)
    python = sandbox.run("import platform\nplatform.python_version()", language="python")
    assert (python.runtime.name, python.runtime.version) == ("python", python.value)


@pytest.mark.kinds("worker")
def test_the_engine_is_named_with_its_version(sandbox: Any) -> None:
    for language, name in (("javascript", "quickjs-ng"), ("python", "monty")):
        runtime = sandbox.run("1", language=language).runtime
        assert runtime.name == name
        assert any(character.isdigit() for character in runtime.version)


def test_each_run_has_an_id_of_its_own(sandbox: Any) -> None:
    results = [sandbox.run("1", language="python") for _ in range(3)]
    assert len({result.run_id for result in results}) == 3
    assert all(len(result.run_id) >= 16 for result in results)


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("fields", [{}, {"allow_fs": True}, {"cpu_time_ms": 3000}])
def test_the_isolation_report_has_every_control_with_its_evidence(
    sandbox: Any, kind: str, language: str, fields: dict[str, Any]
) -> None:
    if kind == "worker" and "allow_fs" in fields:
        with pytest.raises(cloche.InvalidRequestError, match="allow_fs"):
            sandbox.run("1", language=language, **fields)
        return
    report = sandbox.run("1", language=language, **fields).isolation
    assert report.backend == "namespaces"
    assert set(report.controls) >= CONTROLS
    assert ("cpu_time" in report.controls) is ("cpu_time_ms" in fields)
    for name, control in report.controls.items():
        assert control.mechanism and control.evidence, name
        assert control.strength in (Strength.ENFORCED, Strength.BEST_EFFORT), name
    for name in ("capabilities", "no_new_privs", "seccomp", "processes", "network", "root"):
        assert report.controls[name].strength is Strength.ENFORCED
    scratch = "sized-tmpfs" if fields.get("allow_fs") else "nothing-writable"
    assert report.controls["scratch"].mechanism == scratch


@pytest.mark.kinds("process")
def test_the_report_follows_the_limits_of_the_run(sandbox: Any) -> None:
    for limit in (64, 200):
        controls = sandbox.run("1", language="python", memory_limit_mb=limit).isolation.controls
        memory = controls["memory"]
        if memory.mechanism == "cgroup":
            assert str(limit * 1024 * 1024) in memory.evidence
        else:
            assert (memory.mechanism, memory.strength) == ("watchdog", Strength.BEST_EFFORT)
            assert str(limit) in memory.evidence


def test_what_is_required_and_there_is_in_the_report(sandbox: Any, kind: str) -> None:
    fields = {"allow_fs": True} if kind == "process" else {}
    known = sandbox.run("1", language="python", **fields).isolation.controls
    require = {name: control.mechanism for name, control in known.items()}
    result = sandbox.run("1", language="python", require=require, **fields)
    assert result.ok
    for name, mechanism in require.items():
        assert result.isolation.controls[name].mechanism == mechanism


@pytest.mark.parametrize(
    "require", [{"scratch": "sized-tmpfs"}, {"memory": "watchdog"}, {"cpu_time": "cgroup"}]
)
def test_what_is_required_and_not_there_is_a_refusal(sandbox: Any, require: dict[str, str]) -> None:
    controls = sandbox.run("1", language="python").isolation.controls
    ((name, mechanism),) = require.items()
    if name in controls and controls[name].mechanism == mechanism:
        pytest.skip(f"missing fact: a host where {name} is not by {mechanism}")
    heard: list[str] = []
    with pytest.raises(cloche.UnavailableError) as caught:
        sandbox.run("print(1)", language="python", require=require,
                    on_output=lambda _, text: heard.append(text))  # fmt: skip
    assert heard == []
    assert name in caught.value.message and mechanism in caught.value.message
    assert caught.value.fact and caught.value.fix
    assert sandbox.run("1 + 1", language="python").value == 2


@pytest.mark.kinds("process")
def test_a_warm_box_reports_a_limit_of_cpu_time_to_the_run_that_has_one_alone(
    create: Callable[..., Any],
) -> None:
    async def test() -> None:
        async with create(language="python", pool_size=1) as sandbox:
            for limit_ms in (None, 3000, None):
                await asyncio.sleep(0.5)
                result = await sandbox.run("1", cpu_time_ms=limit_ms)
                assert ("cpu_time" in result.isolation.controls) is (limit_ms is not None)

    asyncio.run(test())
