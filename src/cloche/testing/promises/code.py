"""Code: what a snippet is, and what its value is."""

from __future__ import annotations

from typing import Any, Final

from cloche.errors import SandboxErrorCode
from cloche.testing.claims import describe, has_code, has_value, holds, is_ok
from cloche.testing.subject import Subject, promise

SCRIPTS: Final[tuple[tuple[str, Any], ...]] = (
    ("5", 5),
    ("let x = 5; x", 5),
    ("5; const a = 1", None),
    ("if (true) { 5 }", None),
    ("({ a: 1 })", {"a": 1}),
    ("{ a: 1 }", None),
    ("(1, 2)", 2),
    ("1;;", 1),
    ("let y\ny = 3", 3),
    ("function f() { return 9 } f()", 9),
    ("const f = async () => 9; f()", 9),
    ("1 /* after */ // and more", 1),
    ("[1, 2]\n.map(x => x * 2)", [2, 4]),
    ("'use strict'; 3", 3),
    ("\ufeff1\r\n+ 1\r\n", 2),
)
PYTHON: Final[tuple[tuple[str, Any], ...]] = (
    ("5", 5),
    ("x = 5\nx", 5),
    ("5\na = 1", None),
    ("if True:\n    5", None),
    ("def f():\n    return 9\nf()", 9),
    ("1; 2 ; 3", 3),
    ("# only\n1 # after", 1),
    ("sum([i for i in range(4)])\r\n", 6),
)
RETURNS: Final[dict[str, tuple[tuple[str, Any], ...]]] = {
    "javascript": (
        ("return 5", 5),
        ("return", None),
        ("if (true) return 7; 8", 7),
        ("for (const x of [1, 2]) { if (x === 2) return x }", 2),
        ("try { return 1 } finally { console.log('f') }", 1),
    ),
    "python": (
        ("return 5", 5),
        ("return", None),
        ("if True:\n    return 7\n8", 7),
        ("for x in [1, 2]:\n    if x == 2:\n        return x", 2),
        ("try:\n    return 1\nfinally:\n    print('f')", 1),
    ),
}


async def _have_values(subject: Subject, language: str, pairs: tuple[tuple[str, Any], ...]) -> None:
    for code, value in pairs:
        result = await subject.run(code, language=language)
        try:
            has_value(result, value)
        except AssertionError as error:
            raise AssertionError(f"{language} {code!r}: {error}") from error


@promise(201)
async def the_value_is_that_of_the_last_expression(subject: Subject) -> None:
    """Without a `return` the value is that of the last statement, when it is an expression.

    "The value is that of a top-level `return`, else of the last expression statement, in every
    language."
    """
    for language in subject.languages:
        await _have_values(subject, language, PYTHON if language == "python" else SCRIPTS)


@promise(202)
async def the_value_is_that_of_a_top_level_return(subject: Subject) -> None:
    """A `return` outside of any function ends the snippet with its value.

    "The value is that of a top-level `return`, else of the last expression statement, in every
    language."
    """
    for language in subject.languages:
        pairs = RETURNS["python" if language == "python" else "javascript"]
        await _have_values(subject, language, pairs)


@promise(203)
async def top_level_await_works(subject: Subject) -> None:
    """`await` may stand outside of any function.

    "Top-level `await` works."
    """
    codes = {
        "javascript": "const v = await Promise.resolve(3); v + 1",
        "python": "async def f():\n    return 4\nv = await f()\nv",
    }
    async for result in subject.each(codes):
        has_value(result, 4)


@promise(204)
async def code_that_says_nothing_is_ok(subject: Subject) -> None:
    """Empty and comment-only code is ok and has no value.

    "Empty or comment-only: ok, None."
    """
    for language in subject.languages:
        comment = "# c" if language == "python" else "// c"
        empty = ("", "  \n", comment)
        await _have_values(subject, language, (*((code, None) for code in empty), ("1", 1)))


@promise(205, needs=("programs",))
async def leaving_midway_is_ok_without_a_value(subject: Subject) -> None:
    """`exit(0)` in the middle of a snippet ends it: ok, None.

    "`exit(0)` midway: ok, None."
    """
    codes = {
        "javascript": "console.log('a'); process.exit(0); console.log('b'); 5",
        "python": "print('a')\nexit(0)\nprint('b')\n5",
    }
    if "deno" in subject.runtimes:
        codes["javascript"] = "console.log('a'); Deno.exit(0); console.log('b'); 5"
    async for result in subject.each(codes):
        has_value(result, None)
        holds(result.stdout == "a\n", describe(result))


@promise(206)
async def code_that_does_not_parse_is_invalid(subject: Subject) -> None:
    """Code with a syntax error is told as such, with its place; no part of it runs.

    "SANDBOX_INVALID_CODE: it does not parse, or uses what this engine does not know; result, with
    position."
    """
    codes = {
        "javascript": "console.log('ran');\nconst a = = 2;",
        "python": "print('ran')\nb = = 2",
    }
    async for result in subject.each(codes):
        has_code(result, SandboxErrorCode.INVALID_CODE)
        holds(result.error_line == 2, f"line {result.error_line}: {describe(result)}")
        holds(result.stdout == "", f"a part of it ran: {describe(result)}")


@promise(207, needs=("typescript",))
async def typescript_is_transformed_and_not_checked(subject: Subject) -> None:
    """Types are erased without a look at them, and what has a meaning at run time works.

    "TypeScript is transformed, not checked; enums, namespaces, parameter properties and decorators
    work, or are refused the same way everywhere."
    """
    works = (
        ("const n: number = '1' as never; n", "1"),
        ("enum Tone { Low, High = 5, Top }\n[Tone[0], Tone.Top]", ["Low", 6]),
        ("namespace Out { export const x = 1 }\nOut.x", 1),
        ("class P { constructor(private a: number) {} s() { return this.a } }\nnew P(3).s()", 3),
        ("type A = { a: number }; interface B { b: A }; declare const gone: B; 2", 2),
    )
    await _have_values(subject, "typescript", works)
    decorated = "let seen = 0;\nfunction d(..._: any[]) { seen++ }\nclass A { @d m() {} }\nseen"
    result = await subject.run(decorated, language="typescript")
    if result.ok:
        has_value(result, 1)
    else:
        has_code(result, SandboxErrorCode.INVALID_CODE)
        holds(result.error_line == 3, describe(result))


@promise(208, needs=("javascript", "typescript"))
async def javascript_is_no_typescript(subject: Subject) -> None:
    """Types in JavaScript are a syntax error.

    "One parser and transformer decides this for all JavaScript and TypeScript runtimes."
    """
    for code in ("let x: number = 1", "enum A {}", "interface I {}"):
        is_ok(await subject.run(code, language="typescript"))
        result = await subject.run(code, language="javascript")
        has_code(result, SandboxErrorCode.INVALID_CODE)


@promise(209, needs=("javascript",), kinds=("process",))
async def built_ins_can_be_imported(subject: Subject) -> None:
    """Static and dynamic imports of runtime built-ins work; nothing else can be imported.

    "Static imports: runtime built-ins in the process sandbox."
    """
    has_value(await subject.run("import { sep } from 'node:path'; sep", language="javascript"), "/")
    code = "typeof (await import('node:os')).platform"
    has_value(await subject.run(code, language="javascript"), "function")
    for name in ("lodash", "./mine.js"):
        result = await subject.run(f"import x from '{name}'; x", language="javascript")
        holds(not result.ok and name.strip("./") in (result.error or ""), describe(result))


@promise(210, needs=("javascript",), kinds=("worker",))
async def a_worker_refuses_imports_by_name(subject: Subject) -> None:
    """The worker has nothing to import, and says which import it refuses.

    "Static imports: … refused by name in the worker."
    """
    for name in ("node:fs", "lodash"):
        result = await subject.run(f"import x from '{name}'; x", language="javascript")
        has_code(result, SandboxErrorCode.INVALID_CODE, name)


@promise(211, needs=("javascript",))
async def code_cannot_close_what_is_around_it(subject: Subject) -> None:
    """Text that closes brackets which it did not open is a syntax error, and does not run.

    "One parser and transformer decides this …, keeps positions, and runs inside the wall."
    """
    for code in (")})(); globalThis.hit = 1; (async () => {", "}}}; {{{", "1)); ((1"):
        result = await subject.run(f"console.log('ran');\n{code}", language="javascript")
        has_code(result, SandboxErrorCode.INVALID_CODE)
        holds(result.stdout == "" and result.error_line == 2, describe(result))


@promise(212)
async def a_run_never_sees_anything_of_an_earlier_one(subject: Subject) -> None:
    """Globals, and changes to what the language itself offers, end with their run.

    "A run never sees anything of an earlier run."
    """
    first = {
        "javascript": "globalThis.left = 1; Array.prototype.left = 2; JSON.left = 3;"
        " Object.prototype.left = 4; left + [].left",
        "python": "left = 3\nlen = 5\nleft",
    }
    second = {
        "javascript": "typeof left + typeof [].left + typeof JSON.left + typeof ({}).left",
        "python": "try:\n    seen = left\nexcept NameError:\n    seen = 'nothing'\n"
        "[seen, len('ab')]",
    }
    for _ in range(3):
        async for result in subject.each(first):
            has_value(result, 3)
        async for result in subject.each(second):
            python = result.value and isinstance(result.value, list)
            has_value(result, ["nothing", 2] if python else "undefined" * 4)
