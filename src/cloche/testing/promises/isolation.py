"""Isolation: what was enforced, and by what."""

from __future__ import annotations

from cloche.model.plan import Strength
from cloche.testing.claims import describe, has_value, holds, is_ok
from cloche.testing.subject import Subject, promise

FIRM = ("capabilities", "no_new_privs", "seccomp", "processes", "network", "root")


@promise(1301)
async def the_report_has_every_control_with_its_evidence(subject: Subject) -> None:
    """Each control has a mechanism, a strength and what was read back from the kernel.

    "What was enforced and by what, read back from the kernel (status, limits, mountinfo, cgroup
    files), never echoed from the request."
    """
    async for result in subject.each({"javascript": "1", "python": "1"}):
        is_ok(result)
        report = result.isolation
        holds(bool(report.backend), "no backend")
        missing = {*FIRM, "memory", "pids", "cpu", "open_files", "uid"} - set(report.controls)
        holds(not missing, f"not in the report: {sorted(missing)}")
        for name, control in report.controls.items():
            holds(bool(control.mechanism and control.evidence), f"{name}: {control}")
            strength = (Strength.ENFORCED, Strength.BEST_EFFORT)
            holds(control.strength in strength, f"{name}: {control}")
        for name in FIRM:
            firm = report.controls[name].strength is Strength.ENFORCED
            holds(firm, f"{name}: {report.controls[name]}")


@promise(1302, kinds=("process",))
async def the_report_follows_the_limits_of_the_run(subject: Subject) -> None:
    """Another memory limit is another line in the report.

    "read back from the kernel …, never echoed from the request"; "memory without a cgroup is
    `best_effort` and says so."
    """
    seen = set()
    for limit in (64, 96):
        control = (await subject.run("1", memory_limit_mb=limit)).isolation.controls["memory"]
        if control.strength is Strength.BEST_EFFORT:
            holds(control.mechanism != "cgroup", f"{control}")
        else:
            holds(str(limit * 1024 * 1024) in control.evidence, f"{limit} MiB: {control}")
        seen.add(control.evidence)
    holds(len(seen) == 2, f"both limits have the same evidence: {seen}")


@promise(1303, needs=("javascript",))
async def the_host_is_not_to_be_seen_from_an_engine(subject: Subject) -> None:
    """No variable of the host's environment is told to the code.

    "`env`: {}: for programs"; "False: no host file visible."
    """
    code = (
        "const e = typeof process === 'object' && process.env ? Object.keys(process.env) : [];"
        " e.filter(name => !/^(PATH|HOME|TMPDIR|LANG|LC_CTYPE|TZ|DO_NOT_TRACK"
        "|(BUN|DENO|NODE|NO|UV)_.*)$/.test(name))"
    )
    has_value(await subject.run(code, language="javascript"), [])


@promise(1304, kinds=("worker",))
async def an_engine_has_nothing_of_a_host(subject: Subject) -> None:
    """The engine offers the language: no files, processes or modules of a runtime.

    "Engines live in reused host processes of Cloche's own, each inside a box (no network, no
    files, seccomp, memory cap)."
    """
    codes = {
        "javascript": "['process', 'require', 'Deno', 'Bun', 'module', 'std', 'os', '__host']"
        ".filter(name => name in (() => {}).constructor('return globalThis')())",
    }
    async for result in subject.each(codes):
        has_value(result, [])
    if "python" in subject.languages:
        for code in ("open('/etc/passwd').read()", "import subprocess\nsubprocess.run(['id'])",
                     "import ctypes\n1", "().__class__.__base__.__subclasses__()"):  # fmt: skip
            result = await subject.run(code, language="python")
            holds(not result.ok, f"{code!r}: {describe(result)}")
