"""Programs: the runtime's main module, with stdin, arguments, variables and an exit code."""

from __future__ import annotations

import json
from typing import Any, Final

from cloche.errors import SandboxErrorCode
from cloche.testing.claims import describe, has_code, holds, refused, same
from cloche.testing.subject import Subject, promise

_ECHO: Final = {
    "javascript": "import fs from 'node:fs'; import process from 'node:process';"
    " process.stdout.write(fs.readFileSync(0))",
    "python": "import sys\nsys.stdout.buffer.write(sys.stdin.buffer.read())",
}
_SHOW: Final = {
    "javascript": "import process from 'node:process';"
    " console.log(JSON.stringify(process.argv.slice(2)))",
    "python": "import json, sys\nprint(json.dumps(sys.argv[1:]))",
}
_EXIT: Final = {
    "javascript": "import process from 'node:process'; console.log('x'); process.exit({})",
    "python": "print('x')\nimport sys\nsys.exit({})",
}
_EXIT_THREE: Final = {language: code.format(3) for language, code in _EXIT.items()}
_ENV: Final = {
    "javascript": "import process from 'node:process'; console.log(JSON.stringify(process.env))",
    "python": "import json, os\nprint(json.dumps(dict(os.environ)))",
}


@promise(1501, needs=("programs",))
async def a_program_reads_its_stdin_to_the_end(subject: Subject) -> None:
    """Text and bytes arrive as they are, and end.

    "`stdin`, `args`, `env`: for programs; control never travels on fds 0-2."
    """
    given: tuple[str | bytes, ...] = ("", "one\ntwo", "é😀\n", b"\xff\0", "x" * 200_000)
    for stdin in given:
        data = stdin.encode() if isinstance(stdin, str) else stdin
        async for result in subject.each(_ECHO, mode="program", stdin=stdin):
            holds(result.ok and result.exit_code == 0 and result.value is None, describe(result))
            holds(result.stdout == data.decode("utf-8", "replace"), describe(result))


@promise(1502, needs=("programs",))
async def arguments_arrive_as_they_are(subject: Subject) -> None:
    """No argument is taken for an option of the runtime, or expanded.

    "`stdin`, `args`, `env`: for programs."
    """
    args = ["a b", "", "-h", "--help", "--eval", "$(x)", "é", "*", "--"]
    async for result in subject.each(_SHOW, mode="program", args=args):
        holds(result.ok, describe(result))
        same(json.loads(result.stdout), args, "args")


@promise(1503, needs=("programs",))
async def variables_are_the_callers_and_few_others(subject: Subject) -> None:
    """The variables given are there, and none of the host's own.

    "`stdin`, `args`, `env`: for programs."
    """
    given = {"MINE": "é\n=", "EMPTY": ""}
    async for result in subject.each(_ENV, mode="program", env=given):
        holds(result.ok, describe(result))
        seen: dict[str, Any] = json.loads(result.stdout)
        holds(given.items() <= seen.items(), f"{seen}")
        holds(len(seen) < 20 and not {"USER", "LOGNAME", "SSH_AUTH_SOCK"} & set(seen), f"{seen}")


@promise(1504, needs=("programs",))
async def ok_means_exit_code_zero(subject: Subject) -> None:
    """A program is ok when it exits with 0, and has no value.

    "program: …, exit code; ok ⇔ exit 0, value None."
    """
    for exit_code in (0, 1, 3, 255):
        codes = {language: code.format(exit_code) for language, code in _EXIT.items()}
        async for result in subject.each(codes, mode="program"):
            seen = (result.ok, result.value, result.exit_code, result.stdout)
            same(seen, (exit_code == 0, None, exit_code, "x\n"), "program")
            if exit_code:
                has_code(result, SandboxErrorCode.EXECUTION_ERROR, str(exit_code))


@promise(1505, needs=("programs",))
async def an_uncaught_error_ends_a_program(subject: Subject) -> None:
    """It is told on stderr by the runtime, and with its place in the result.

    "SANDBOX_EXECUTION_ERROR: it threw, exited non-zero, was killed …; result."
    """
    codes = {
        "javascript": "const a = 1;\n\nthrow new RangeError('mine');",
        "python": "a = 1\n\nraise ValueError('mine')",
    }
    async for result in subject.each(codes, mode="program"):
        has_code(result, SandboxErrorCode.EXECUTION_ERROR)
        holds(result.exit_code not in (0, None) and "mine" in result.stderr, describe(result))
        holds(result.error_line == 3 and "mine" in (result.error or ""), describe(result))


@promise(1506, needs=("programs",))
async def a_program_has_no_context_and_no_tools(subject: Subject) -> None:
    """Both are refused by name, and `args` is for a snippet.

    "snippet: has a value. program: the runtime's main module, `stdin`, `args`, exit code."
    """
    with refused("context"):
        await subject.run("1", {"x": 1}, mode="program")
    with refused("tools"):
        await subject.run("1", mode="program", tools={"ask": lambda: 1})
    with refused("args"):
        await subject.run("1", args=["x"])


@promise(1507, needs=("programs",))
async def an_empty_program_is_ok(subject: Subject) -> None:
    """Nothing to run is no error, and no output.

    "Empty or comment-only: ok, None."
    """
    async for result in subject.each({"javascript": "// c", "python": "# c"}, mode="program"):
        seen = (result.ok, result.value, result.exit_code, result.stdout)
        same(seen, (True, None, 0, ""), "program")
    async for result in subject.each(_EXIT_THREE, mode="program"):
        same(result.exit_code, 3, "exit code")


@promise(1508, needs=("programs", "python"))
async def a_program_waits_for_its_threads(subject: Subject) -> None:
    """It ends when the runtime says so, unlike a snippet, which ends with its last statement.

    "program: the runtime's main module."
    """
    code = (
        "import atexit, threading, time\n"
        "atexit.register(print, 'handler')\n"
        "threading.Thread(target=lambda: (time.sleep(0.1), print('thread'))).start()\n"
    )
    result = await subject.run(code, language="python", mode="program")
    same(result.stdout, "thread\nhandler\n", "stdout")
