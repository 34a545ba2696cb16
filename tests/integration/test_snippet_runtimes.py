"""Node and Deno beyond the contract, which holds for them too: their own ways, kept in line."""

from collections.abc import Iterator
from typing import Any

import pytest

import cloche.sync
from cloche import SandboxErrorCode
from needs import BOX, require_facts

SCRIPTS = ("javascript", "typescript")


@pytest.fixture(scope="module", params=["node", "deno"])
def runtime(request: pytest.FixtureRequest) -> str:
    """Which runtime."""
    require_facts(*BOX, f"runtime-{request.param}")
    return str(request.param)


@pytest.fixture(scope="module")
def sandbox(runtime: str) -> Iterator[Any]:
    """A started sandbox with default limits."""
    with cloche.sync.create_process_sandbox(runtime=runtime) as started:
        yield started


@pytest.mark.parametrize(("code", "column"), [("null.x", 6), ("  throw new Error('m')", 9)])
def test_an_errors_column_is_the_engines_in_the_callers_text(
    sandbox: Any, code: str, column: int
) -> None:
    """V8 points at the property that cannot be read, Bun at the expression."""
    for language in SCRIPTS:
        result = sandbox.run(f"const a = 1;\n{code}", language=language)
        assert (result.error_line, result.error_column) == (2, column), result.error_stack


@pytest.mark.case("api-03-wrapper-breakout")
@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize(
    "code",
    [
        ")})(); globalThis.hit = 1; (async () => {",
        "})(); globalThis.hit = 1; (async () => {",
        "return 1 })(); globalThis.hit = 1; (async () => {",
        "*/ globalThis.hit = 1 /*",
        "}\nexport default 'forged'\n{",
        "import 'cloche:unresolved'; }{",
    ],
)
def test_code_cannot_close_what_is_around_it(sandbox: Any, language: str, code: str) -> None:
    result = sandbox.run(f"console.log('ran');\n{code}", language=language)
    assert (result.error_code, result.stdout) == (SandboxErrorCode.INVALID_CODE, ""), result.error


def test_imports_are_of_built_ins_and_of_the_callers_files(sandbox: Any) -> None:
    files = {
        "mine.js": "import { y } from './sub/other.js'; export const x = y",
        "sub/other.js": "export const y = 5",
        "types.ts": "export enum A { B = 6 }",
        "plain.cjs": "module.exports = 7",
        "data.json": "[8]",
    }
    code = (
        "import { x } from './mine.js';\nimport { A } from './types.ts';\n"
        "import path from 'path';\nimport data from './data.json' with { type: 'json' };\n"
        "[x, A.B, require('./plain.cjs'), require('./data.json')[0], data[0], path.sep, __filename]"
    )
    result = sandbox.run(code, files=files)
    assert result.value == [5, 6, 7, 8, 8, "/", "/workspace/snippet.js"], result.error
    for name in ("lodash", "https://example.org/x.js", "npm:lodash", "jsr:@std/path", "./no.js"):
        result = sandbox.run(f"1;\nimport x from '{name}'; x", files=files)
        assert (result.error_code, result.error_line) == (SandboxErrorCode.EXECUTION_ERROR, 2)
        assert name.removeprefix("./") in result.error


def test_a_context_may_take_the_names_that_the_harness_uses(sandbox: Any) -> None:
    for name in ("URL", "Blob", "Event", "addEventListener", "setImmediate", "fetch"):
        for code in (f"{name}.a", f"import 'node:path'; await {name}.a"):
            result = sandbox.run(code, {name: {"a": 7}})
            assert (result.value, result.error) == (7, None)


async def _add(a: int, b: int) -> int:
    return a + b


def test_tools_and_variables_are_there_in_a_warm_box_and_in_a_new_one(runtime: str) -> None:
    code = "[await tools.add(1, 2), process.env.MINE]"
    warm = []
    for size in (0, 1):
        with cloche.sync.create_process_sandbox(runtime=runtime, pool_size=size) as sandbox:
            result = sandbox.run(code, tools={"add": _add}, env={"MINE": "m"})
            assert result.value == [3, "m"], result.error
            warm.append(result.warm)
    assert warm == [False, True]


def test_what_never_comes_is_no_value(sandbox: Any) -> None:
    assert not sandbox.run("await new Promise(() => {})", timeout_ms=1500).ok


@pytest.mark.parametrize(
    "code",
    [
        "let kept; for (let i = 0; i < 200; i++) kept = new Array(20000).fill(0).map(j => ({ j }))",
        "const kept = []; for (let i = 0; i < 4e5; i++) kept.push({ i })",
    ],
)
def test_the_default_limits_are_enough_for_code_that_does_not_keep_much(
    sandbox: Any, code: str
) -> None:
    result = sandbox.run(f"{code}\n1")
    assert result.value == 1, result.error


@pytest.mark.parametrize(
    "code",
    [
        "const kept = []; while (true) kept.push(new Array(1000).fill(kept.length))",
        "const kept = []; while (true) kept.push(new Uint8Array(1e6).fill(1))",
    ],
)
def test_code_that_keeps_too_much_is_told_so(sandbox: Any, code: str) -> None:
    result = sandbox.run(code, timeout_ms=30_000)
    assert result.error_code is SandboxErrorCode.MEMORY_EXCEEDED, result.error
    assert result.stderr == ""


MAIN = {
    "javascript": "const [, , ...args] = process.argv;\n",
    "typescript": "enum Tone { Low = 3 }\nconst [, , ...args]: string[] = process.argv;\n",
}


@pytest.mark.parametrize("language", SCRIPTS)
def test_a_program_has_arguments_input_output_and_an_exit_code(sandbox: Any, language: str) -> None:
    code = MAIN[language] + (
        "let text = '';\n"
        "process.stdin.on('data', piece => { text += piece });\n"
        "process.stdin.on('end', () => {\n"
        "  console.log(args.join(), text); process.stdout.write('x'.repeat(1e6)); process.exit(3)\n"
        "});\n"
    )
    result = sandbox.run(code, language=language, mode="program", args=["a", "b"], stdin="in")
    assert (result.exit_code, result.stdout_bytes) == (3, 7 + 1_000_000), result.stderr
    assert result.stdout.startswith("a,b in\nxxx")
    assert (result.stderr, result.error_code) == ("", SandboxErrorCode.EXECUTION_ERROR)


@pytest.mark.parametrize("language", SCRIPTS)
@pytest.mark.parametrize(
    ("code", "error_code", "line"),
    [
        ("\nthrow new RangeError('mine');", SandboxErrorCode.EXECUTION_ERROR, 1),
        ("setTimeout(() => {\n throw Error('mine') })", SandboxErrorCode.EXECUTION_ERROR, 1),
        ("\n\nPromise.reject(new RangeError('mine'))", SandboxErrorCode.EXECUTION_ERROR, 2),
        ("let a = 1\nlet b = = 'mine'", SandboxErrorCode.INVALID_CODE, 1),
        ("export {}\nlet b = = 'mine'", SandboxErrorCode.INVALID_CODE, 1),
    ],
)  # fmt: skip
def test_an_error_that_ends_a_program_is_told_with_its_place(
    sandbox: Any, language: str, code: str, error_code: SandboxErrorCode, line: int
) -> None:
    start = MAIN[language]
    result = sandbox.run(start + code, language=language, mode="program")
    assert (result.exit_code, result.error_code) == (1, error_code), result.error
    assert result.error_line == start.count("\n") + 1 + line
    assert "mine" in result.stderr
    for text in (result.stderr, result.error, result.error_stack or ""):
        assert "/opt/cloche" not in text


def test_programs_of_both_module_kinds_run(sandbox: Any) -> None:
    for code in (
        "const fs = require('fs'); console.log(typeof fs.readFileSync, require.main === module)",
        "import fs from 'fs'; console.log(typeof fs.readFileSync, import.meta.main)",
    ):
        result = sandbox.run(code, mode="program")
        assert (result.ok, result.stdout) == (True, "function true\n"), result.stderr
