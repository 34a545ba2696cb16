"""Which text is a snippet, what its value is, and where it runs."""

from typing import Any

import pytest
from dialects import assert_unknown_to_the_engine

from cloche import SandboxErrorCode

SCRIPTS = ("javascript", "typescript")
# Signs of code that the worker's engine does not know.
NOT_IN_MONTY = ("x = [i for", "yield", "create_task", "import *")

SCRIPT_VALUES: list[tuple[str, Any]] = [
    ("let x = 5; x", 5),
    ("5; const a = 1", None),
    ("if (true) { 5 }", None),
    ("return 5", 5),
    ("return", None),
    ("if (true) return 7; 8", 7),
    ("for (const x of [1, 2]) { if (x === 2) return x }", 2),
    ("try { return 1 } finally { console.log('f') }", 1),
    ("function f() { return 9 } f()", 9),
    ("const f = async () => 9; f()", 9),
    ("await Promise.resolve(3)", 3),
    ("const v = await new Promise(r => setTimeout(r, 5, 4)); v", 4),
    ("for await (const x of [Promise.resolve(6)]) { return x }", 6),
    ("({ a: 1 })", {"a": 1}),
    ("{ a: 1 }", None),
    ("(1, 2)", 2),
    ("`t${1}`", "t1"),
    ("1 /* after */ // and more", 1),
    ("1;;", 1),
    ("let y\ny = 3", 3),
    ("[1, 2]\n.map(x => x * 2)", [2, 4]),
    ("'use strict'; 3", 3),
    ("export const q = 3; q", 3),
    ("#!/usr/bin/env bun\n1", 1),
    ("\ufeff1", 1),
    ("1\r\n+ 1\r\n", 2),
    ("typeof require('node:os').platform()", "string"),
    ("import fs from 'fs'; typeof fs.readFileSync", "function"),
    ("import { sep } from 'node:path'; sep", "/"),
    ("import * as path from 'node:path'; path.basename('/a/b')", "b"),
    ("(await import('node:util')).inspect([1])", "[ 1 ]"),
]

PYTHON_VALUES: list[tuple[str, Any]] = [
    ("x = 5\nx", 5),
    ("5\na = 1", None),
    ("if True:\n    5", None),
    ("return 5", 5),
    ("return", None),
    ("if True:\n    return 7\n8", 7),
    ("for x in [1, 2]:\n    if x == 2:\n        return x", 2),
    ("try:\n    return 1\nfinally:\n    print('f')", 1),
    ("try:\n    return 1\nexcept BaseException:\n    print('caught')\n", 1),
    ("a = 1\ndef f():\n    global a\n    a += 1\nf()\nreturn a", 2),
    ("class A:\n    x = [i for i in range(3)]\nA.x", [0, 1, 2]),
    ("import asyncio\nawait asyncio.sleep(0, 4)", 4),
    ("import asyncio\nreturn await asyncio.sleep(0, 4)", 4),
    ("import asyncio\nasync def g():\n    yield 1\n[x async for x in g()]", [1]),
    ("import asyncio\nt = asyncio.create_task(asyncio.sleep(0, 5))\nawait t", 5),
    ("x: int = 1\nx", 1),
    ("from math import *\nsqrt(4)", 2.0),
    ("__name__", "__main__"),
    ("\ufeff1", 1),
    ("1; 2 ; 3", 3),
    ("'''doc'''", "doc"),
    ("# only\n1 # after", 1),
    ("from __future__ import annotations\n1", 1),
    ("sum([i for i in range(4)])\r\n", 6),
]


@pytest.mark.every_runtime
@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize(("code", "value"), SCRIPT_VALUES, ids=range(len(SCRIPT_VALUES)))
def test_the_value_is_that_of_a_return_or_of_the_last_expression(
    sandbox: Any, kind: str, language: str, code: str, value: Any
) -> None:
    result = sandbox.run(code, language=language)
    if kind == "worker" and any(sign in code for sign in ("require(", "import ", "import(")):
        assert_unknown_to_the_engine(result)
        return
    assert (result.ok, result.error, result.value) == (True, None, value)


@pytest.mark.parametrize(("code", "value"), PYTHON_VALUES, ids=range(len(PYTHON_VALUES)))
def test_the_value_is_that_of_a_return_or_of_the_last_expression_in_python_too(
    sandbox: Any, kind: str, code: str, value: Any
) -> None:
    result = sandbox.run(code, language="python")
    if kind == "worker" and any(sign in code for sign in NOT_IN_MONTY):
        assert_unknown_to_the_engine(result)
        return
    assert (result.ok, result.error, result.value) == (True, None, value)
    assert "caught" not in result.stdout


@pytest.mark.case("api-01-empty")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        (language, code)
        for language in SCRIPTS
        for code in ("", "  \n", "// c", "\ufeff", ";", "/**/")
    ]
    + [("python", code) for code in ("", "  \n", "# c", "\ufeff", "pass")],
)
def test_code_that_says_nothing_is_ok_and_has_no_value(
    sandbox: Any, kind: str, language: str, code: str
) -> None:
    result = sandbox.run(code, language=language)
    assert (result.ok, result.value, result.stdout) == (True, None, "")
    assert result.exit_code == (None if kind == "worker" else 0)


@pytest.mark.kinds("process")
@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "console.log('a'); process.exit(0); console.log('b'); 5"),
        ("typescript", "console.log('a'); process.exit(0); console.log('b'); 5"),
        ("python", "print('a')\nexit(0)\nprint('b')\n5"),
        ("python", "print('a')\nquit()"),
        ("python", "import sys\nprint('a')\nsys.exit()"),
        ("python", "import os\nprint('a', flush=True)\nos._exit(0)"),
    ],
)
def test_leaving_midway_with_zero_is_ok_without_a_value(
    sandbox: Any, language: str, code: str
) -> None:
    result = sandbox.run(code, language=language)
    assert (result.ok, result.value, result.exit_code, result.stdout) == (True, None, 0, "a\n")


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("javascript", "setInterval(() => console.log('tick'), 1); setTimeout(() => {}, 1e6); 1"),
        ("python", "import threading, time\n"
         "threading.Thread(target=time.sleep, args=(60,)).start()\n1"),
    ],
)  # fmt: skip
def test_timers_and_threads_do_not_hold_a_snippet(
    sandbox: Any, kind: str, language: str, code: str
) -> None:
    result = sandbox.run(code, language=language)
    if kind == "worker" and language == "python":
        assert_unknown_to_the_engine(result)
        return
    assert (result.ok, result.value) == (True, 1)
    assert result.duration_ms < 2000


def test_every_run_starts_afresh(sandbox: Any, kind: str) -> None:
    """Nothing of one run is seen by the next: globals, modules, files, prototypes."""
    first = "globalThis.left = 1; Array.prototype.left = 2; [left, [].left]"
    assert sandbox.run(first).value == [1, 2]
    assert sandbox.run("[typeof left, typeof [].left]").value == ["undefined", "undefined"]
    if kind == "worker":
        return
    first = "import builtins, os\nbuiltins.left = open('/tmp/left', 'w').write('x')\nleft"
    assert sandbox.run(first, language="python", allow_fs=True).value == 1
    second = "import os\n['left' in dir(__builtins__), os.listdir('/tmp'), os.listdir('.')]"
    assert sandbox.run(second, language="python", allow_fs=True).value == [False, [], []]


@pytest.mark.case("ts-07-esm-cjs-mix")
@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize(
    ("code", "named"),
    [
        ("import lodash from 'lodash'; lodash", "lodash"),
        ("import 'left-pad'", "left-pad"),
        ("require('../../../../node_modules/left-pad')", "left-pad"),
        ("await import('lodash')", "lodash"),
        ("import x from './mine.js'; x", "mine"),
        ("import x from 'https://example.org/x.js'; x", "example.org"),
    ],
)
def test_nothing_but_built_ins_can_be_imported_and_no_path_of_the_host_is_told(
    sandbox: Any, kind: str, language: str, code: str, named: str
) -> None:
    result = sandbox.run(code, language=language)
    assert not result.ok
    if kind == "worker" and "require(" in code:
        assert_unknown_to_the_engine(result)
        return
    assert named in result.error
    for text in (result.error, result.error_stack or "", result.stderr):
        assert "/opt/" not in text and "node_modules/.bun" not in text and "/usr/" not in text


@pytest.mark.kinds("process")
def test_nothing_but_the_standard_library_can_be_imported_in_python(sandbox: Any) -> None:
    for name in ("pytest", "pip", "cloche", "tree_sitter", "setuptools"):
        result = sandbox.run(f"import {name}", language="python")
        assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
        assert f"No module named '{name}'" in result.error
    code = "import json, asyncio, sqlite3, decimal, zoneinfo, ssl, ctypes, unittest\n1"
    assert sandbox.run(code, language="python").value == 1


@pytest.mark.kinds("process")
@pytest.mark.parametrize("language", SCRIPTS)
def test_import_meta_tells_nothing_of_the_host(sandbox: Any, language: str) -> None:
    result = sandbox.run("[import.meta.url, import.meta.dir, __filename]", language=language)
    assert result.ok, result.error
    for place in result.value:
        assert place.removeprefix("file://").startswith("/workspace")


@pytest.mark.case("api-03-wrapper-breakout")
@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize(
    "code",
    [
        ")})(); globalThis.hit = 1; (async () => {",
        "})(); globalThis.hit = 1; (async () => {",
        "}}}; globalThis.hit = 1; {{{",
        "}\nexport default 'forged'\n{",
        "</script><!--",
        "*/ globalThis.hit = 1 /*",
        "`; globalThis.hit = 1; `${",
        "1)); globalThis.hit = 1; ((1",
    ],
)
def test_code_cannot_close_what_is_around_it(
    sandbox: Any, kind: str, language: str, code: str
) -> None:
    result = sandbox.run(f"console.log('ran');\n{code}", language=language)
    assert result.error_code is SandboxErrorCode.INVALID_CODE
    assert result.stdout == ""
    # Of TypeScript that cannot be erased, a worker knows where the parser gave up alone.
    assert result.error_line == 2 or (kind, language) == ("worker", "typescript")


@pytest.mark.case("api-03-wrapper-breakout")
@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("\u2028globalThis.hit = 'yes'", "yes"),
        ("1;\n//# sourceMappingURL=file:///etc/passwd", 1),
        ("'; touch /tmp/hit; '", "; touch /tmp/hit; "),
        ("'$(touch /tmp/hit)`touch /tmp/hit`'", "$(touch /tmp/hit)`touch /tmp/hit`"),
    ],
)
def test_code_that_looks_like_an_escape_is_plain_code(sandbox: Any, code: str, value: Any) -> None:
    for language in SCRIPTS:
        assert sandbox.run(code, language=language).value == value


@pytest.mark.parametrize(
    ("code", "value"),
    [
        ("String.raw`\\u`", None),  # the parser here does not know it: refused, not lost
        ("return String.raw`\\u`", "\\u"),
        ("/[\\p{L}--[a-z]]/v.test('A')", True),
        ("class A { accessor = 1 }; new A().accessor", 1),
        ("let { a, ...rest } = { a: 1, b: 2 }; rest", {"b": 2}),
        ("let n = null; n ??= 1_000; n", 1000),
        ("label: { break label } 5", 5),
        ("var yield_ = async x => await x; yield_(3)", 3),
        ("if (0) ; else 1\n7", 7),
        ("a = b\n/1/g\nvar a, b = 4; a", None),
        ("({ async *[Symbol.iterator]() {}, get a() { return 1 }, set a(x) {} }).a", 1),
        ("#x in {} ? 1 : 2", None),
        ("new.target", None),
        ("`${`${`${1}`}`}`", "1"),
        ("0 || (() => ({}))().a?.[0]?.(1) ?? 'd'", None),
    ],
)
def test_syntax_that_is_rare_has_its_value_or_is_an_error_and_is_never_lost(
    sandbox: Any, kind: str, code: str, value: Any
) -> None:
    result = sandbox.run(code)
    if kind == "worker" and "/v." in code:  # sets in regular expressions are not in QuickJS
        assert result.error_code is SandboxErrorCode.INVALID_CODE
        return
    if value is None:
        assert not result.ok
    else:
        assert (result.ok, result.value) == (True, value), result.error


@pytest.mark.parametrize("code", [1, None, b"1", ["1"], "\ud800", "x" * (8 * 1024 * 1024 + 1)])
def test_code_that_is_no_text_or_too_much_is_refused(sandbox: Any, code: Any) -> None:
    for language in ("javascript", "python"):
        with pytest.raises(Exception, match=r"^code: ") as caught:
            sandbox.run(code, language=language)
        assert caught.value.code is SandboxErrorCode.INVALID_REQUEST  # type: ignore[attr-defined]
        assert caught.value.retry_safe  # type: ignore[attr-defined]


def test_much_code_is_run_all_the_same(sandbox: Any) -> None:
    limits = {"memory_limit_mb": 512, "timeout_ms": 30_000}
    padding = "x = 1\n" * 100_000
    assert sandbox.run(f"{padding}7", language="python", **limits).value == 7
    padding = "var x = 1;\n" * 20_000
    assert sandbox.run(f"{padding}7", **limits).value == 7
