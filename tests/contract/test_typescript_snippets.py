"""TypeScript is transformed and not checked."""

from typing import Any

import pytest

from cloche import SandboxErrorCode

VALUES: list[tuple[str, Any]] = [
    ("enum Tone { Low, High = 5, Top }\n[Tone[0], Tone.Top]", ["Low", 6]),
    ("const enum Size { S = 7 }\nSize.S", 7),
    ("enum Word { A = 'a' }\nWord.A", "a"),
    ("namespace Out { export const x = 1; export namespace In { export const y = 2 } }\n"
     "[Out.x, Out.In.y]", [1, 2]),
    ("class P { constructor(private a: number, public b = 2) {} s() { return this.a + this.b } }\n"
     "[new P(3).s(), new P(3).b]", [5, 2]),
    ("abstract class A { abstract f(): number }\nclass B extends A { f() { return 4 } }\n"
     "new B().f()", 4),
    ("function over(a: string): string; function over(a: number): number;\n"
     "function over(a: any) { return a }\nover(1)", 1),
    ("const first = <T,>(x: T[]): T => x[0]!; first([3])", 3),
    ("const point = { x: 1 } satisfies { x: number }; point", {"x": 1}),
    ("let u = <any>5; u as unknown as string", 5),
    ("type A = { a: number }; interface B { b: A }; declare const gone: B; 2", 2),
    ("import type { X } from 'nowhere'; 1", 1),
    ("import { type Y, sep } from 'node:path'; sep", "/"),
    ("namespace A.B { export const x = 1 }\nimport B = A.B;\nB.x", 1),
    ("f();\nnamespace N { export const x = 1 }\nfunction f() {}\nreturn N.x", 1),
    ("class A { static accessor x = 1; accessor y = 2 }\n[A.x, new A().y]", [1, 2]),
    ("export type T = 1; export interface I {}; 2", 2),
    ("class C {\n static #n = 1; static { C.#n = 2 } declare x: number;\n"
     " static get n() { return C.#n }\n}\nC.n", 2),
    ("let o: { a?: { b: number } } = {}; o?.a?.b ?? 'none'", "none"),
    ("function assertIs(x: unknown): asserts x is string {}\nassertIs(1); 3", 3),
    ("using_: for (const x of [1]) { break using_ }\n1", 1),
]  # fmt: skip


@pytest.mark.case("ts-01-enum-namespace")
@pytest.mark.parametrize(("code", "value"), VALUES, ids=range(len(VALUES)))
def test_typescript_works(sandbox: Any, kind: str, code: str, value: Any) -> None:
    result = sandbox.run(code, language="typescript")
    if kind == "worker" and "'node:" in code:
        assert result.error_code is SandboxErrorCode.INVALID_CODE
        return
    assert (result.ok, result.error, result.value) == (True, None, value)


@pytest.mark.parametrize("language", ["typescript", "javascript"])
def test_decorators_are_called_as_the_standard_says(sandbox: Any, language: str) -> None:
    code = (
        "const told = [];\n"
        "const add = (n) => (value, on) => (x) => x + n;\n"
        "const noted = (value, on) => { told.push(on.kind, on.name) };\n"
        "@noted class A { @noted m() {} @add(1) @add(10) x = 5 }\n"
        "[told, new A().x]"
    )
    result = sandbox.run(code, language=language)
    assert result.value == [["method", "m", "class", "A"], 16], result.error


@pytest.mark.parametrize(
    ("code", "line", "column"),
    [
        ("1;\n  import fs = require('fs')", 2, 3),
        ("export = 5", 1, 1),
        ("enum E { A = f(), B }", 1, 19),
        ("class A { m(@d p: any) {} }", 1, 13),
    ],
)
def test_what_no_module_can_say_is_refused_with_its_place(
    sandbox: Any, code: str, line: int, column: int
) -> None:
    result = sandbox.run(code, language="typescript")
    assert result.error_code is SandboxErrorCode.INVALID_CODE
    assert (result.error_line, result.error_column) == (line, column)


@pytest.mark.case("ts-03-decorators")
def test_decorators_are_never_ignored(sandbox: Any) -> None:
    code = (
        "const calls: string[] = [];\n"
        "function noted(_: any, on: any) { calls.push(String(on.name ?? on)) }\n"
        "class A { @noted m() { return 1 } @noted static s = 2 }\n"
        "new A().m(); calls"
    )
    result = sandbox.run(code, language="typescript")
    assert sorted(result.value) == ["m", "s"], result.error


@pytest.mark.case("ts-06-top-level-await")
def test_top_level_await_keeps_the_order_and_the_value(sandbox: Any) -> None:
    code = (
        "console.log('first');\n"
        "const n: number = await new Promise<number>(done => queueMicrotask(() => done(41)));\n"
        "console.log('second');\n"
        "n + 1;"
    )
    result = sandbox.run(code, language="typescript")
    assert (result.value, result.stdout) == (42, "first\nsecond\n")


@pytest.mark.case("ts-06-top-level-await")
def test_a_rejected_await_is_an_error_with_its_place(sandbox: Any) -> None:
    code = "const a: number = 1;\nawait Promise.reject(new RangeError('mine'));"
    result = sandbox.run(code, language="typescript")
    assert result.error_code is SandboxErrorCode.EXECUTION_ERROR
    assert (result.error, result.error_line) == ("RangeError: mine", 2)


@pytest.mark.case("ts-07-esm-cjs-mix")
@pytest.mark.kinds("worker")
def test_a_worker_refuses_modules_by_name(sandbox: Any) -> None:
    result = sandbox.run('import { readFileSync } from "node:fs"; 1', language="typescript")
    assert result.error_code is SandboxErrorCode.INVALID_CODE
    assert "node:fs" in result.error
    assert "use the process sandbox" in result.error


@pytest.mark.case("ts-07-esm-cjs-mix")
@pytest.mark.kinds("process")
def test_both_kinds_of_modules_can_be_mixed(sandbox: Any) -> None:
    code = (
        'import { readFileSync } from "node:fs";\n'
        'const os = require("node:os");\n'
        "export const both = typeof readFileSync + typeof os.platform;\n"
        "export default both;"
    )
    result = sandbox.run(code, language="typescript")
    assert (result.ok, result.value) == (True, "functionfunction"), result.error


@pytest.mark.case("ts-08-type-errors-do-not-block")
def test_types_that_do_not_fit_are_no_error(sandbox: Any) -> None:
    code = 'const n: number = "1"; const m: string = 2 as never; n + m'
    assert sandbox.run(code, language="typescript").value == "12"


def test_javascript_is_not_taken_as_typescript(sandbox: Any) -> None:
    for code in ("let x: number = 1", "enum A {}", "interface I {}"):
        assert sandbox.run(code, language="typescript").ok
        result = sandbox.run(code, language="javascript")
        assert result.error_code is SandboxErrorCode.INVALID_CODE, code
        assert result.error_line == 1
