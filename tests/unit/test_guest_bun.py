"""What guest/bun.mjs and guest/bun_program.mjs promise."""

import json
from pathlib import Path

import pytest
from guest_driver import needs_bun, run_bun, run_program

pytestmark = needs_bun


def test_the_value_of_the_function_is_the_value() -> None:
    assert run_bun("return price * (1 + rate)", {"price": 80, "rate": 0.25}).value == 100


def test_values_follow_json_stringify() -> None:
    ended = run_bun(
        "return [NaN, -Infinity, new Date(0), new Map([[1, 2]]), undefined, () => 1, '\\ud800',"
        " { u: undefined, ['__proto__']: 1 }]"
    )
    assert ended.value == [
        None, None, "1970-01-01T00:00:00.000Z", {}, None, None, "\ud800", {"__proto__": 1},
    ]  # fmt: skip
    assert "value" not in run_bun("return undefined").frame


def test_a_module_without_default_export_has_no_value() -> None:
    ended = run_bun("", code="export {};console.log(1)")
    assert (ended.frame, ended.stdout, ended.exit_code) == ({"ok": True}, "1\n", 0)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("return { list: [0, { big: 1n }] }", "value.list[1].big: a BigInt has no JSON form"),
        ("const o = { l: [{}] }; o.l[0]['a b'] = o; return o", 'value.l[0]["a b"]: the value'),
        ("return { a: { toJSON() { throw new Error('no') } } }", "value.a: toJSON threw no"),
        ("return [{ get x() { throw 5 } }]", "value[0].x: reading it threw 5"),
    ],
)
def test_a_value_without_json_form_is_an_error_that_names_the_path(body: str, message: str) -> None:
    error = run_bun(body).error
    assert error["code"] == "SANDBOX_EXECUTION_ERROR"
    assert error["message"].startswith(message)


@pytest.mark.parametrize(
    "body",
    [
        "let d = {}, p = d; for (let i = 0; i < 256; i++) p = p.n = {}; return d",
        "let d = [], p = d; for (let i = 0; i < 50000; i++) { p[0] = []; p = p[0] } return d",
        "return 'x'.repeat(1 << 20)",
        "return 'é'.repeat(1 << 19)",
    ],
)
def test_a_value_over_a_limit_is_too_large(body: str) -> None:
    assert run_bun(body).error["code"] == "SANDBOX_VALUE_TOO_LARGE"


def test_values_just_inside_the_limits_pass() -> None:
    assert run_bun("let d = {}, p = d; for (let i = 1; i < 256; i++) p = p.n = {}; return d").value
    assert len(run_bun("return 'é'.repeat((1 << 19) - 1)").value) == (1 << 19) - 1


def test_an_error_has_its_place_in_the_callers_text_and_no_frame_of_the_harness() -> None:
    error = run_bun("const a: number = 1\nfunction f() {\n  null.x\n}\nf()").error
    assert (error["name"], error["line"]) == ("TypeError", 3)
    assert "at f (snippet.ts:3:" in error["stack"]
    assert "at snippet.ts:5:" in error["stack"]
    assert "bun.mjs" not in error["stack"] and "/workspace" not in error["stack"]


def test_text_that_was_put_in_before_it_does_not_move_an_errors_column() -> None:
    spliced = run_bun("return (null.x)", edits=((2, 1, -8), (2, 15, -1), (3, 1, -5))).error
    plain = run_bun("null.x").error
    assert (spliced["line"], spliced["column"]) == (plain["line"], plain["column"])
    assert f"snippet.ts:1:{plain['column']}" in spliced["stack"]


def test_code_that_does_not_parse_is_invalid_with_its_place() -> None:
    error = run_bun("const a = 1;\nconst b = 2;\nconst c = = 3;").error
    assert (error["code"], error["line"], error["column"]) == ("SANDBOX_INVALID_CODE", 3, 11)


def test_the_runtimes_own_parser_has_the_last_word_on_doubtful_text() -> None:
    error = run_bun("return 1", check="let x = 1;\nlet y = = 2").error
    assert (error["code"], error["line"], error["column"]) == ("SANDBOX_INVALID_CODE", 2, 9)
    assert run_bun("return 1", check="if (true) return 1").value == 1


def test_an_import_that_is_not_found_has_its_place() -> None:
    error = run_bun(
        "",
        code="export {};\nimport x from 'left-pad'; export default await (x)",
        imports=[["left-pad", 1, 15]],
    ).error
    assert (error["name"], error["line"], error["column"]) == ("ResolveError", 1, 15)


def test_an_unknown_package_is_an_error_and_never_installed() -> None:
    error = run_bun("await import('left-pad')").error
    assert error["code"] == "SANDBOX_EXECUTION_ERROR"
    assert error["message"] == "Cannot find package 'left-pad' imported from snippet.ts"


@pytest.mark.parametrize(
    "body",
    [
        "setTimeout(() => { null.x }, 0); await new Promise(() => setTimeout(() => {}, 1000))",
        "Promise.reject(new TypeError('lost')); return 1",
        "queueMicrotask(() => { throw new TypeError('lost') }); return 1",
    ],
)
def test_an_error_nobody_handles_fails_the_snippet(body: str) -> None:
    assert run_bun(body).error["name"] == "TypeError"


def test_an_endless_chain_of_promise_jobs_has_no_value() -> None:
    spin = "async function spin() { while (go) await null } spin(); return 'x'"
    ended = run_bun(f"let go = true; {spin}", timeout_s=1)
    assert (ended.frame, ended.exit_code) == (None, -9)
    assert run_bun(f"let go = false; {spin}").value == "x"


def test_pending_timers_do_not_hold_a_snippet() -> None:
    assert run_bun("setInterval(() => {}, 1000); return 3", timeout_s=5).value == 3


@pytest.mark.parametrize(
    ("thrown", "message"),
    [
        ("5", "threw 5, which is no Error"),
        ("null", "threw null, which is no Error"),
        ("{ a: 1 }", 'threw {"a":1}, which is no Error'),
        ("{ get name() { throw 1 }, get message() { throw 2 } }", ""),
        ("Object.defineProperty(new Error('m'), 'stack', { get() { throw 1 } })", "m"),
    ],
)
def test_whatever_is_thrown_becomes_an_error(thrown: str, message: str) -> None:
    assert run_bun(f"throw {thrown}").error["message"] == message


def test_messages_and_stacks_are_bounded() -> None:
    error = run_bun("throw new Error('m'.repeat(1e6), { cause: new Error('c'.repeat(1e6)) })").error
    assert len(error["message"]) <= 8 * 1024 and len(error["stack"]) <= 16 * 1024


def test_a_guest_that_breaks_the_globals_harms_its_own_value_only() -> None:
    ended = run_bun(
        "JSON.stringify = () => 'evil'; Promise.prototype.then = 0; Array.prototype.push = 0;"
        "Uint8Array.prototype.set = 0; TextEncoder.prototype.encode = 0;"
        "globalThis.Uint8Array = globalThis.setImmediate = globalThis.Promise = null;"
        "Object.prototype.toJSON = () => 5; return [1]"
    )
    assert (ended.value, ended.exit_code) == (5, 0)


def test_output_before_the_end_is_kept_however_large() -> None:
    ended = run_bun("console.log('x'.repeat(5e6)); console.warn('w'); return 1")
    assert (len(ended.stdout), ended.stderr, ended.value) == (5_000_001, "w\n", 1)
    assert len(run_bun("process.stdout.write('x'.repeat(3e6))").stdout) == 3_000_000


def test_leaving_midway_sends_no_frame_and_keeps_the_exit_code() -> None:
    ended = run_bun("console.log('hi'); process.exit(7)")
    assert (ended.frame, ended.stdout, ended.exit_code) == (None, "hi\n", 7)


def test_runtime_built_ins_and_require_work_in_snippets() -> None:
    assert run_bun("return [typeof require('node:os').cpus, require('path').basename('a/b')]").value


def test_the_only_new_globals_are_the_contexts_names(tmp_path: Path) -> None:
    names = "JSON.stringify(Object.getOwnPropertyNames(globalThis))"
    bare = run_program(program(tmp_path, "main.mjs", f"console.log({names})")).stdout
    seen = run_bun(f"return JSON.parse({names})", {"extra": 1}).value
    assert set(seen) - set(json.loads(bare)) == {"extra"}


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_program_is_the_main_module_with_its_own_exit_code(tmp_path: Path) -> None:
    text = "if (require.main === module) { console.log(process.argv[2]); process.exitCode = 3 }"
    ended = run_program(program(tmp_path, "main.js", text), "arg")
    assert (ended.frame, ended.stdout, ended.exit_code) == (None, "arg\n", 3)


def test_a_program_reads_its_stdin(tmp_path: Path) -> None:
    path = program(tmp_path, "main.ts", "console.log(import.meta.main, await Bun.stdin.text())")
    assert run_program(path, stdin="abc").stdout == "true abc\n"


@pytest.mark.parametrize(
    ("text", "code", "line"),
    [
        ("\nthrow new Error('x')", "SANDBOX_EXECUTION_ERROR", 2),
        ("\n\nsetTimeout(() => { null.x }, 1)", "SANDBOX_EXECUTION_ERROR", 3),
        ("\nPromise.reject(new Error('x'))", "SANDBOX_EXECUTION_ERROR", 2),
        ("\nlet a = = 1", "SANDBOX_INVALID_CODE", 2),
    ],
)
def test_a_programs_error_is_explained_and_printed(
    tmp_path: Path, text: str, code: str, line: int
) -> None:
    ended = run_program(program(tmp_path, "main.ts", text))
    assert (ended.error["code"], ended.error["line"]) == (code, line)
    assert f"main.ts:{line}:" in ended.stderr


def test_an_error_that_a_program_handles_is_none(tmp_path: Path) -> None:
    text = (
        "process.on('unhandledRejection', (e) => console.log('own', e.message));"
        "process.on('uncaughtException', (e) => console.log('own', e.message));"
        "setTimeout(() => { throw new Error('b') }, 5); Promise.reject(new Error('a'))"
    )
    ended = run_program(program(tmp_path, "main.js", text))
    assert (ended.frame, ended.stdout, ended.exit_code) == (None, "own a\nown b\n", 0)
