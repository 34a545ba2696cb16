"""What the harnesses for Bun, Node and Deno promise: guest/*.mjs."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from guest_driver import SCRIPT_RUNTIMES, run_program, run_script

pytestmark = pytest.mark.live
Run = Any


@pytest.fixture(params=SCRIPT_RUNTIMES)
def runtime(request: pytest.FixtureRequest) -> str:
    """Which runtime."""
    return str(request.param)


@pytest.fixture
def run(runtime: str) -> Run:
    """Runs the body of a snippet; see `guest_driver.run_script`."""
    return partial(run_script, runtime)


def test_the_value_of_the_function_is_the_value(run: Run) -> None:
    assert run("return price * (1 + rate)", {"price": 80, "rate": 0.25}).value == 100


def test_values_follow_json_stringify(run: Run) -> None:
    ended = run(
        "return [NaN, -Infinity, new Date(0), new Map([[1, 2]]), undefined, () => 1, '\\ud800',"
        " { u: undefined, ['__proto__']: 1 }]"
    )
    assert ended.value == [
        None, None, "1970-01-01T00:00:00.000Z", {}, None, None, "\ud800", {"__proto__": 1},
    ]  # fmt: skip
    assert "value" not in run("return undefined").frame


def test_a_module_without_default_export_has_no_value(run: Run) -> None:
    ended = run("", code="export {};console.log(1)")
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
def test_a_value_without_json_form_is_an_error_that_names_the_path(
    run: Run, body: str, message: str
) -> None:
    error = run(body).error
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
def test_a_value_over_a_limit_is_too_large(run: Run, body: str) -> None:
    assert run(body).error["code"] == "SANDBOX_VALUE_TOO_LARGE"


def test_values_just_inside_the_limits_pass(run: Run) -> None:
    assert run("let d = {}, p = d; for (let i = 1; i < 256; i++) p = p.n = {}; return d").value
    assert len(run("return 'é'.repeat((1 << 19) - 1)").value) == (1 << 19) - 1


def test_an_error_has_its_place_in_the_callers_text_and_no_frame_of_the_harness(run: Run) -> None:
    error = run("const a = 1\nfunction f() {\n  null.x\n}\nf()").error
    assert (error["name"], error["line"]) == ("TypeError", 3)
    assert "at f (snippet.ts:3:" in error["stack"]
    assert "at snippet.ts:5:" in error["stack"]
    assert ".mjs" not in error["stack"] and "/workspace" not in error["stack"]


def test_text_that_was_put_in_before_it_does_not_move_an_errors_column(run: Run) -> None:
    spliced = run("return (null.x)", edits=((2, 1, -8), (2, 15, -1), (3, 1, -5))).error
    plain = run("null.x").error
    assert (spliced["line"], spliced["column"]) == (plain["line"], plain["column"])
    assert f"snippet.ts:1:{plain['column']}" in spliced["stack"]


def test_code_that_does_not_parse_is_invalid_with_its_place(run: Run) -> None:
    error = run("const a = 1;\nconst b = 2;\nconst c = = 3;").error
    assert (error["code"], error["line"], error["column"]) == ("SANDBOX_INVALID_CODE", 3, 11)


def test_the_runtimes_own_parser_has_the_last_word_on_doubtful_text(run: Run) -> None:
    error = run("return 1", check="let x = 1;\nlet y = = 2").error
    assert (error["code"], error["line"], error["column"]) == ("SANDBOX_INVALID_CODE", 2, 9)
    assert run("return 1", check="if (true) return 1").value == 1


def test_an_import_that_is_not_found_has_its_place(run: Run) -> None:
    error = run(
        "",
        code="export {};\nimport x from 'left-pad'; export default await (x)",
        imports=[["left-pad", 1, 15]],
    ).error
    assert (error["name"], error["line"], error["column"]) == ("ResolveError", 1, 15)


def test_an_unknown_package_is_an_error_and_never_installed(run: Run) -> None:
    error = run("await import('left-pad')").error
    assert error["code"] == "SANDBOX_EXECUTION_ERROR"
    assert error["message"].startswith("Cannot find ") and "'left-pad'" in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        "setTimeout(() => { null.x }, 0); await new Promise(() => setTimeout(() => {}, 1000))",
        "Promise.reject(new TypeError('lost')); return 1",
        "queueMicrotask(() => { throw new TypeError('lost') }); return 1",
    ],
)
def test_an_error_nobody_handles_fails_the_snippet(run: Run, body: str) -> None:
    assert run(body).error["name"] == "TypeError"


def test_an_endless_chain_of_promise_jobs_has_no_value(run: Run) -> None:
    spin = "async function spin() { while (go) await null } spin(); return 'x'"
    ended = run(f"let go = true; {spin}", timeout_s=1)
    assert (ended.frame, ended.exit_code) == (None, -9)
    assert run(f"let go = false; {spin}").value == "x"


def test_pending_timers_do_not_hold_a_snippet(run: Run) -> None:
    assert run("setInterval(() => {}, 1000); return 3", timeout_s=5).value == 3


@pytest.mark.parametrize(
    ("thrown", "message"),
    [  # Node and Deno look at an error themselves before they pass it on
        ("5", "threw 5, which is no Error"),
        ("null", "threw null, which is no Error"),
        ("{ a: 1 }", 'threw {"a":1}, which is no Error'),
        ("{ get name() { throw 1 }, get message() { throw 2 } }", ""),
        ("Object.assign(new Error('m'), { name: 'N', stack: 'mine' })", "m"),
        ("Object.defineProperty(new Error('m'), 'stack', { get() { throw 1 } })", "m"),
    ],
)
def test_whatever_is_thrown_becomes_an_error(run: Run, thrown: str, message: str) -> None:
    assert run(f"throw {thrown}").error["message"].startswith(message)


def test_messages_and_stacks_are_bounded(run: Run) -> None:
    error = run("throw new Error('m'.repeat(1e6), { cause: new Error('c'.repeat(1e6)) })").error
    assert len(error["message"]) <= 8 * 1024 and len(error["stack"]) <= 16 * 1024


def test_a_guest_that_breaks_the_globals_harms_its_own_value_only(run: Run) -> None:
    ended = run(
        "JSON.stringify = () => 'evil'; Promise.prototype.then = 0; Array.prototype.push = 0;"
        "Uint8Array.prototype.set = 0; TextEncoder.prototype.encode = 0;"
        "globalThis.Uint8Array = globalThis.setImmediate = globalThis.Promise = null;"
        "Object.prototype.toJSON = () => 5; return [1]"
    )
    assert (ended.value, ended.exit_code) == (5, 0)


def test_output_before_the_end_is_kept_however_large(run: Run) -> None:
    ended = run("console.log('x'.repeat(5e6)); console.warn('w'); return 1")
    assert (len(ended.stdout), ended.stderr, ended.value) == (5_000_001, "w\n", 1)
    assert len(run("process.stdout.write('x'.repeat(3e6))").stdout) == 3_000_000


def test_leaving_midway_sends_no_frame_and_keeps_the_exit_code(run: Run) -> None:
    ended = run("console.log('hi'); process.exit(7)")
    assert (ended.frame, ended.stdout, ended.exit_code) == (None, "hi\n", 7)


def test_runtime_built_ins_and_require_work_in_snippets(run: Run) -> None:
    assert run("return [typeof require('node:os').cpus, require('path').basename('a/b')]").value


def test_the_only_new_globals_are_the_contexts_names(
    runtime: str, run: Run, tmp_path: Path
) -> None:
    names = "JSON.stringify(Object.getOwnPropertyNames(globalThis))"
    main = program(tmp_path, "main.mjs", f"console.log({names})")
    bare = json.loads(run_program(main, runtime=runtime).stdout)
    # What every module of Bun's has, snippets have in the others too.
    common = set() if runtime == "bun" else {"require", "__filename", "__dirname"}
    seen = run(f"return JSON.parse({names})", {"extra": 1})
    assert set(seen.value) - set(bare) == {"extra"} | common
    ahead = run(f"return JSON.parse({names})", {"extra": 1}, stream=True, delay_s=0.5)
    # Deno adds that name to a guest that uses something of Node's, and a waiting one has.
    assert set(ahead.value) - {"nodeBootstrap"} == set(seen.value)


def program(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_a_program_is_the_main_module_with_its_own_exit_code(runtime: str, tmp_path: Path) -> None:
    text = "if (require.main === module) { console.log(process.argv[2]); process.exitCode = 3 }"
    ended = run_program(program(tmp_path, "main.js", text), "arg", runtime=runtime)
    assert (ended.frame, ended.stdout, ended.exit_code) == (None, "arg\n", 3)


def test_a_program_reads_its_stdin(runtime: str, tmp_path: Path) -> None:
    text = "for await (const c of process.stdin) console.log(process.argv.at(-1), String(c))"
    path = program(tmp_path, "main.ts", f"import process from 'node:process';\n{text}")
    assert run_program(path, "a", stdin="abc", runtime=runtime).stdout == "a abc\n"


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
    runtime: str, tmp_path: Path, text: str, code: str, line: int
) -> None:
    ended = run_program(program(tmp_path, "main.ts", text), runtime=runtime)
    assert (ended.error["code"], ended.error["line"]) == (code, line)
    assert f"main.ts:{line}" in ended.stderr


def test_an_error_that_a_program_handles_is_none(runtime: str, tmp_path: Path) -> None:
    text = (
        "process.on('unhandledRejection', (e) => console.log('own', e.message));"
        "process.on('uncaughtException', (e) => console.log('own', e.message));"
        "setTimeout(() => { throw new Error('b') }, 5); Promise.reject(new Error('a'))"
    )
    ended = run_program(program(tmp_path, "main.js", text), runtime=runtime)
    assert (ended.frame, ended.stdout, ended.exit_code) == (None, "own a\nown b\n", 0)


TOOLS = {"add": lambda a, b: a + b, "echo": lambda *args: list(args), "never": lambda *_: None}


def test_tools_are_awaited_alone_together_and_in_loops(run: Run) -> None:
    body = (
        "const one = await tools.add(1, 2);"
        "const three = await Promise.all([1, 2, 3].map(i => tools.add(i, i)));"
        "let sum = 0; for (let i = 0; i < 20; i++) sum = await tools.add(sum, i);"
        "return [one, three, sum]"
    )
    ended = run(body, tools=TOOLS)
    assert ended.value == [3, [2, 4, 6], 190]
    assert [call["call"] for call in ended.calls] == list(range(1, 25))
    assert ended.calls[0] == {"call": 1, "tool": "add", "args": [1, 2], "kwargs": {}}


def test_tools_are_frozen_and_only_there_when_a_request_names_some(run: Run) -> None:
    body = (
        "return [Object.keys(tools), Object.isFrozen(tools), Object.getPrototypeOf(tools),"
        " tools.add.name]"
    )
    assert run(body, tools=TOOLS).value == [["add", "echo", "never"], True, None, "add"]
    assert run("return typeof tools").value == "undefined"
    assert run("return typeof tools", stream=True).value == "undefined"


def test_a_tool_that_fails_rejects_with_its_message_and_the_place_of_the_call(run: Run) -> None:
    def fail() -> None:
        raise ValueError("no luck")

    error = run("\nawait tools.fail()", tools={"fail": fail}).error
    assert (error["name"], error["message"], error["line"]) == ("ToolError", "no luck", 2)
    body = "try { await tools.fail() } catch (e) { return [e instanceof Error, e.name, {...e}] }"
    assert run(body, tools={"fail": fail}).value == [True, "ToolError", {}]


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("{ a: [1n] }", "args[0].a[0]: a BigInt has no JSON form"),
        ("'x'.repeat(1 << 20)", "args: the value is larger than"),
    ],
)
def test_arguments_without_json_form_are_refused_before_anything_is_sent(
    run: Run, argument: str, message: str
) -> None:
    ended = run(f"await tools.echo({argument})", tools=TOOLS)
    assert ended.error["message"].startswith(message)
    assert ended.calls == []


def test_large_answers_come_whole(run: Run) -> None:
    body = "return (await tools.echo('é'.repeat(2e5), undefined)).map(x => x && x.length)"
    assert run(body, tools=TOOLS).value == [200_000, None]


def test_calls_that_wait_hold_a_snippet_but_not_its_end(run: Run) -> None:
    assert run("tools.never(); return 5", tools=TOOLS, timeout_s=5).value == 5
    assert run("await tools.never()", tools=TOOLS, timeout_s=1.5).exit_code == -9


def test_a_guest_that_breaks_the_globals_still_has_tools(run: Run) -> None:
    body = (
        "JSON.stringify = JSON.parse = globalThis.Promise = 0;"
        "Uint8Array.prototype.set = Uint8Array.prototype.subarray = 0; Map.prototype.get = 0;"
        "TextDecoder.prototype.decode = TextEncoder.prototype.encode = 0;"
        "return await tools.add(1, 2)"
    )
    assert run(body, tools=TOOLS).value == 3


def test_a_harness_that_waits_for_its_request_runs_it_as_a_new_one_does(run: Run) -> None:
    ahead = partial(run, stream=True, delay_s=0.5)
    body = (
        "console.log('x'.repeat(1e6)); process.stdout.write('y'); return [price, process.env.MINE]"
    )
    ended = ahead(body, {"price": 2}, env={"MINE": "é"})
    assert (ended.value, len(ended.stdout), ended.stderr) == ([2, "é"], 1_000_002, "")
    assert ahead("const a = 1;\nconst b = = 2;").error["line"] == 2
    assert ahead("Promise.reject(new TypeError('lost')); return 1").error["name"] == "TypeError"
    assert ahead("return process.env.CLOCHE ?? null").value is None
    assert ahead("process.exit(7)").exit_code == 7


def test_the_zone_of_a_waiting_harness_is_the_requests(run: Run) -> None:
    body = "return new Date(0).getTimezoneOffset()"
    assert run(body, env={"TZ": "Asia/Tokyo"}, stream=True, delay_s=0.5).value == -540
