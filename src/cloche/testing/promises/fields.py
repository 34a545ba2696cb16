"""Fields: what may be asked for, and what is refused before anything starts."""

from __future__ import annotations

import math
from typing import Any, Final

from cloche.errors import InvalidRequestError, SandboxErrorCode
from cloche.model.snippet import RunOptions, SandboxOptions
from cloche.testing.claims import has_code, has_value, holds, refused
from cloche.testing.subject import Subject, promise

NUMBERS: Final = (
    "timeout_ms", "cpu_time_ms", "queue_timeout_ms", "memory_limit_mb", "pids_limit", "cpu_limit",
    "scratch_limit_mb", "output_limit_bytes", "value_limit_bytes",
)  # fmt: skip
FLAGS: Final = ("allow_network", "allow_fs")
WRONG: Final[tuple[tuple[str, Any], ...]] = (
    ("language", "ruby"), ("language", None), ("language", True),
    ("runtime", "perl"), ("mode", "script"),
    ("timeout_ms", 0), ("timeout_ms", 86_400_001),
    ("mounts", ["/etc"]), ("files", {"../x": ""}), ("files", {"/x": ""}), ("files", {"x": 1}),
    ("collect", ["../*"]), ("collect", "x"), ("stdin", 5), ("args", "abc"), ("args", [1]),
    ("env", {"A=B": ""}), ("env", {"A": 1}), ("allow_hosts", "example.test"), ("allow_hosts", [1]),
    ("tools", {"a-b": print}), ("tools", {"a": 1}), ("tools", [print]), ("on_output", 1),
    ("signal", object()), ("require", {"memory": 1}), ("require", ["memory"]), ("logger", 5),
)  # fmt: skip


@promise(101)
async def an_unknown_field_is_refused(subject: Subject) -> None:
    """A field that does not exist is refused by name, for a sandbox, its options and a run.

    "Unknown fields, wrong types, NaN, negatives and booleans for numbers are refused."
    """
    for make in (
        lambda: subject.create(nonsense=1),
        lambda: SandboxOptions.of(None, {"nonsense": 1}),
        lambda: RunOptions(nonsense=1),
    ):
        with refused("nonsense"):
            make()
    with refused("nonsense"):
        await subject.run("1", nonsense=1)


@promise(102)
async def numbers_are_numbers(subject: Subject) -> None:
    """A number that is a boolean, a text, NaN, negative or out of bounds is refused by name.

    "Unknown fields, wrong types, NaN, negatives and booleans for numbers are refused."
    """
    for name in NUMBERS:
        wrong: Any
        for wrong in (True, False, "5", math.nan, math.inf, -1, 10**40, [5], {}):
            with refused(name):
                await subject.run("1", **{name: wrong})


@promise(103)
async def wrong_values_are_refused(subject: Subject) -> None:
    """A wrong value of any other field is refused, and nothing of the run is started.

    "SANDBOX_INVALID_REQUEST: bad field, context or language; raised, before any guest code."
    """
    heard: list[str] = []
    for name in FLAGS:
        for wrong in (1, 0, None, "yes"):
            with refused(name):
                await subject.run("1", **{name: wrong})
    for name, wrong in WRONG:
        fields = {"on_output": lambda _, text: heard.append(text), name: wrong}
        with refused(name):
            await subject.run("1", **fields)
    holds(not heard, f"something was started: {heard}")


@promise(104)
async def a_refusal_harms_nothing(subject: Subject) -> None:
    """After a refusal the sandbox works as before.

    "SANDBOX_INVALID_REQUEST: bad field, context or language; raised, before any guest code."
    """
    for fields in ({"timeout_ms": -1}, {"language": "cobol"}, {"nonsense": 1}):
        with refused():
            await subject.run("1", **fields)
        has_value(await subject.run("1 + 1"), 2)


@promise(105)
async def a_field_of_a_run_wins(subject: Subject) -> None:
    """Fields of a sandbox are its runs' defaults; a run overrides them, both ways.

    "`sandbox.run(code, context=None, options=None, **fields)` takes `RunOptions` or its fields,
    which override per run, both ways."
    """
    text = "'x' * 50" if subject.language == "python" else "'x'.repeat(50)"
    async with subject.create(value_limit_bytes=20) as sandbox:
        too_large = SandboxErrorCode.VALUE_TOO_LARGE
        has_code(await sandbox.run(text), too_large)
        has_value(await sandbox.run(text, value_limit_bytes=100), "x" * 50)
        has_value(await sandbox.run(text, None, RunOptions(value_limit_bytes=100)), "x" * 50)
        over = await sandbox.run(text, None, RunOptions(value_limit_bytes=100), value_limit_bytes=9)
        has_code(over, too_large)
        has_code(await sandbox.run(text), too_large)


@promise(106)
async def options_may_be_an_object(subject: Subject) -> None:
    """A sandbox takes `SandboxOptions`, its fields, or both; anything else is refused.

    "`create_worker_sandbox(options=None, **fields)` and `create_process_sandbox(options=None,
    **fields)` take `SandboxOptions` or its fields."
    """
    fields = {"language": subject.language, **subject.fields}
    options = SandboxOptions.of(None, {**fields, "timeout_ms": 4000})
    async with subject.make(options) as sandbox:
        has_value(await sandbox.run("1 + 1"), 2)
        wrong: Any
        for wrong in ({"timeout_ms": 5}, 5, "x", options):
            with refused("RunOptions"):
                await sandbox.run("1", None, wrong)
    for wrong in ({"timeout_ms": 5}, 5, "x", RunOptions()):
        with refused("SandboxOptions"):
            subject.make(wrong)


@promise(107)
async def fields_of_a_sandbox_alone_are_none_of_a_run(subject: Subject) -> None:
    """`pool_size`, `max_pending`, `trust_domain` and `backend` belong to the sandbox.

    "`pool_size`, `max_pending`: grows to CPUs, 1000"; "`trust_domain`: "local"".
    """
    for name, value in (("pool_size", 1), ("max_pending", 5), ("trust_domain", "a"),
                        ("backend", "auto")):  # fmt: skip
        with refused(name):
            await subject.run("1", **{name: value})
    wrongs: tuple[tuple[str, Any], ...] = (
        ("pool_size", -1), ("pool_size", True), ("max_pending", -1),
        ("trust_domain", ""), ("trust_domain", 5), ("backend", "magic"),
    )  # fmt: skip
    for name, wrong in wrongs:
        with refused(name):
            subject.create(**{name: wrong})


@promise(108)
async def a_mechanism_can_be_required(subject: Subject) -> None:
    """`require` names a mechanism; one that does not exist is refused, one that is there is used.

    "`require={"memory": "cgroup"}` names a mechanism that must be there"; "with none, or where
    `require` names one that is missing, the run is refused."
    """
    for wrong in ({"memory": "prayer"}, {"gravity": "cgroup"}):
        with refused("require"):
            await subject.run("1", require=wrong)
    known = (await subject.run("1")).isolation.controls
    require = {name: control.mechanism for name, control in known.items()}
    result = await subject.run("1", require=require)
    for name, mechanism in require.items():
        seen = result.isolation.controls[name].mechanism
        holds(seen == mechanism, f"required {name} by {mechanism}, and it is by {seen}")
    for name, other in (("memory", "watchdog"), ("scratch", "sized-tmpfs")):
        if name in require and require[name] != other:
            with refused(name, other, code=SandboxErrorCode.UNAVAILABLE):
                await subject.run("1", require={name: other})


@promise(109)
async def code_is_text(subject: Subject) -> None:
    """Code that is no text, has half a character, or is over 8 MiB is refused.

    "SANDBOX_INVALID_REQUEST: bad field, context or language; raised, before any guest code."
    """
    for wrong in (None, 1, b"1", ["1"], "\ud800", "x" * (8 * 1024 * 1024 + 1)):
        with refused("code"):
            await subject.run(wrong)


@promise(110)
async def a_language_of_another_runtime_is_refused(subject: Subject) -> None:
    """A runtime that does not run the language is refused by name.

    "`language`, `runtime`, `backend`: javascript · typescript · python; bun · deno · node ·
    python."
    """
    for runtime, language in (("bun", "python"), ("python", "javascript")):
        with refused("runtime"):
            await subject.run("1", runtime=runtime, language=language)


@promise(111, without=("files",))
async def a_sandbox_without_files_refuses_them(subject: Subject) -> None:
    """Fields about files are refused by name where there are none.

    "A control that was asked for and cannot be enforced is a refusal", and
    "Worker. Engines live in reused host processes … (no network, no files …)".
    """
    for name, value in (("allow_fs", True), ("files", {"a": "b"}), ("collect", ["*"])):
        with refused(name):
            await subject.run("1", **{name: value})
        with refused(name):
            subject.create(**{name: value})


@promise(112, without=("programs",))
async def a_sandbox_without_programs_refuses_them(subject: Subject) -> None:
    """Programs, stdin, arguments and variables are refused by name where there are none.

    "`mode`: program: the runtime's main module, `stdin`, `args`, exit code."
    """
    for name, value in (("mode", "program"), ("stdin", "x"), ("args", ["x"]), ("env", {"A": "b"})):
        with refused(name):
            await subject.run("1", **{name: value})


@promise(113)
async def a_time_limit_may_be_a_day(subject: Subject) -> None:
    """The bounds of `timeout_ms` are 1 and 86,400,000, both included.

    "`timeout_ms`: 5000: … 1 … 86,400,000."
    """
    has_value(await subject.run("1 + 1", timeout_ms=86_400_000), 2)
    try:
        result = await subject.run("1 + 1", timeout_ms=1)
    except InvalidRequestError as error:
        raise AssertionError(f"1 ms is refused: {error}") from error
    holds(result.ok or result.error_code is SandboxErrorCode.TIMEOUT, f"{result.error_code}")
