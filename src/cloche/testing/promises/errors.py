"""Errors: what is told of a failure, and where it points."""

from __future__ import annotations

from typing import Final

import cloche.errors
from cloche.errors import RUN_ERRORS, RunError, SandboxErrorCode
from cloche.testing.claims import describe, has_code, holds
from cloche.testing.subject import Subject, promise

# Of Cloche's own programs and folders: no business of the code.
HIDDEN: Final = ("/opt/cloche", "site-packages", "guest/", "worker.py", "bun.mjs", "/usr/lib")


@promise(501)
async def an_error_points_to_its_place(subject: Subject) -> None:
    """Line and column are those of the caller's own text, which the stack names too.

    "`error_line`, `error_column`, `error_stack` (positions in the caller's own text)."
    """
    codes = {
        "javascript": ("const a = 1;\n  null.x", 2, 3),
        "typescript": ("enum A { X }\nconst a: A = A.X;\n  null.x", 3, 3),
        "python": ("x = 1\n\ny = [1/0]", 3, 6),
    }
    for language in subject.languages:
        code, line, column = codes[language]
        result = await subject.run(code, language=language)
        has_code(result, SandboxErrorCode.EXECUTION_ERROR)
        # Of the expression, or of the property that was read: runtimes differ.
        seen, right = (result.error_line, result.error_column), ((line, column), (line, column + 5))
        holds(seen in right, f"{language}: {seen}, none of {right}: {describe(result)}")
        holds(str(line) in (result.error_stack or ""), f"{language}: {result.error_stack!r}")


@promise(502)
async def an_error_of_a_function_points_into_it(subject: Subject) -> None:
    """The place is that of the throw, not of the call; the stack names both.

    "`error_line`, `error_column`, `error_stack` (positions in the caller's own text)."
    """
    codes = {
        "javascript": "function f() {\n  null.x\n}\n\nf()",
        "python": "def f():\n    return 1/0\n\n\nf()",
    }
    async for result in subject.each(codes):
        has_code(result, SandboxErrorCode.EXECUTION_ERROR)
        holds(result.error_line == 2, describe(result))
        stack = result.error_stack or ""
        holds("2" in stack and "5" in stack, f"both frames are not in {stack!r}")


@promise(503)
async def nothing_of_the_box_is_told(subject: Subject) -> None:
    """No error, stack or output names a path of Cloche's own.

    "A backend's failure never shows up as the program's output."
    """
    codes = {
        "javascript": ("null.x", "throw new Error('mine')", "a = = 1", "10n"),
        "python": ("1/0", "raise ValueError('mine')", "a = = 1", "{1}"),
    }
    for language in subject.languages:
        for code in codes["python" if language == "python" else "javascript"]:
            result = await subject.run(code, language=language)
            heard = "mine" not in code or "mine" in (result.error or "")
            holds(not result.ok and heard, describe(result))
            told = f"{result.error}{result.error_stack}{result.stdout}{result.stderr}"
            for path in HIDDEN:
                holds(path not in told, f"{path} in {told!r}")


@promise(504)
async def what_is_thrown_is_told_in_words(subject: Subject) -> None:
    """An error's name and message are in `error`; a value that is no error is shown.

    "SANDBOX_EXECUTION_ERROR: it threw, exited non-zero, was killed, or its value has no JSON form."
    """
    codes = {
        "javascript": (("throw new RangeError('mine')", "RangeError: mine"), ("throw 5", "5"),
                       ("throw 'text'", "text"), ("throw { code: 42 }", "42"),
                       ("(function f() { f() })()", "RangeError")),
        "python": (("raise ValueError('mine')", "ValueError: mine"), ("raise ValueError", "Value"),
                   ("assert False, 'mine'", "AssertionError: mine"),
                   ("x = [1]\nx[5]", "IndexError"),
                   ("def f():\n    return f()\nf()", "RecursionError")),
    }  # fmt: skip
    for language in subject.languages:
        for code, told in codes["python" if language == "python" else "javascript"]:
            result = await subject.run(code, language=language)
            has_code(result, SandboxErrorCode.EXECUTION_ERROR, told)


@promise(505)
async def an_error_is_bounded(subject: Subject) -> None:
    """A message of megabytes comes back shortened.

    "The host decodes with one bounded strict decoder."
    """
    codes = {
        "javascript": "throw new Error('m'.repeat(3e6))",
        "python": "raise ValueError('m' * 3_000_000)",
    }
    async for result in subject.each(codes, timeout_ms=20_000):
        has_code(result, SandboxErrorCode.EXECUTION_ERROR, "mmmm")
        size = len(result.error or "") + len(result.error_stack or "")
        holds(0 < size < 60_000, f"{size} characters")


@promise(506)
async def a_result_raises_on_demand(subject: Subject) -> None:
    """`raise_for_error()` raises the matching exception, or returns the result itself.

    "`raise_for_error()` raises the matching exception."
    """
    fine = await subject.run("1")
    holds(fine.raise_for_error() is fine, "an ok result raised, or gave something else")
    failed = await subject.run("1/0" if subject.language == "python" else "throw 1")
    try:
        failed.raise_for_error()
    except RunError as error:
        holds(error.code is failed.error_code, f"{error.code} for {failed.error_code}")
        expected = RUN_ERRORS[SandboxErrorCode.EXECUTION_ERROR]
        holds(type(error) is expected, f"{type(error)}")
    else:
        raise AssertionError("nothing was raised")


@promise(507)
async def the_codes_can_be_published(subject: Subject) -> None:
    """`register_sandbox_error_codes()` publishes every code; a second time changes nothing.

    "`register_sandbox_error_codes()` publishes the table to `cloche.errors.ERROR_CODES`
    (idempotent)."
    """
    for _ in range(2):
        cloche.errors.register_sandbox_error_codes()
        missing = {str(code) for code in SandboxErrorCode} - set(cloche.errors.ERROR_CODES)
        holds(not missing, f"not published: {missing}")


@promise(508, needs=("programs",))
async def a_code_that_ends_non_zero_is_an_execution_error(subject: Subject) -> None:
    """Leaving with another exit code than 0, and being killed by itself, are told as such.

    "SANDBOX_EXECUTION_ERROR: it threw, exited non-zero, was killed, or its value has no JSON form."
    """
    leave = "Deno.exit(3)" if "deno" in subject.runtimes else "process.exit(3)"
    async for result in subject.each({"javascript": leave, "python": "exit(3)"}):
        has_code(result, SandboxErrorCode.EXECUTION_ERROR, "3")
        holds(result.exit_code == 3, describe(result))
    if "python" in subject.languages:
        code = "import os\nos.kill(os.getpid(), 9)"
        result = await subject.run(code, language="python")
        has_code(result, SandboxErrorCode.EXECUTION_ERROR, "9")
        holds((result.exit_code, result.signal) == (None, 9), describe(result))
