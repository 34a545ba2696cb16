"""Runs in the JavaScript engine of the worker: limits, what they may use, that each is fresh."""

import time
from collections.abc import Iterator
from typing import Any

import pytest
from engine_driver import Recorder, WaitsError, end, engine, error, run, value

EXECUTION = "SANDBOX_EXECUTION_ERROR"


@pytest.fixture(scope="module", autouse=True)
def _engine_ends() -> Iterator[None]:
    yield
    end()


@pytest.mark.case("res-21-deep-recursion")
@pytest.mark.parametrize(
    "code",
    [
        "function f() { f() } f()",
        "function f(a, b, ...c) { return f(...c, [a], { b }) + 1 } f(1, 2)",
        "function f() { [1, 2].sort(f) } f()",
        "const o = { get x() { return this.x } }; o.x",
        "const o = { toString() { return '' + this } }; '' + o",
        "class A { constructor() { new A() } } new A()",
        "function* g() { yield* g() } [...g()]",
        "let a = {}; for (let i = 0; i < 1e5; i++) a = new Proxy(a, {}); a.x",
        "function f() { 'a'.replace(/a/, f) } f()",
        "let a = []; for (let i = 0; i < 1e5; i++) a = [a]; a.flat(Infinity)",
        "function f() { JSON.parse('[1]', f) } f()",
    ],
)
def test_deep_recursion_is_a_range_error_that_the_code_can_catch(code: str) -> None:
    assert value(f"let name; try {{ {code} }} catch (e) {{ name = e.name }} name") == "RangeError"


@pytest.mark.case("res-21-deep-recursion")
@pytest.mark.parametrize(
    "code",
    [
        "JSON.parse('['.repeat(1e5))",
        "eval('('.repeat(1e5))",
        "eval('`${'.repeat(1e5))",
        "let s = [1].values(); for (let i = 0; i < 1e5; i++) s = s.map(x => x); s.next()",
        "let a = {}; for (let i = 0; i < 1e5; i++) a = new Proxy(a, {}); Object.keys(a)",
    ],
)
def test_what_runs_into_the_end_of_the_stack_ends_its_own_run_alone(code: str) -> None:
    assert error(code)["name"] == "RangeError"
    assert value("1 + 1") == 2


@pytest.mark.case("res-07-typed-arrays")
@pytest.mark.case("res-08-strings")
@pytest.mark.parametrize(
    "code",
    [
        "const a = []; for (;;) a.push(new Uint8Array(1e6).fill(1))",
        "const a = []; for (let i = 0; ; i++) a.push(('x' + i).repeat(5e5))",
        "const a = []; for (;;) a.push({ a: 1 })",
        "let s = 'x'; const a = []; for (;;) { a.push(s); s = s + 'y'.repeat(1e5) + s.length }",
        "new Uint8Array(1e9)",
        "const m = new Map(); for (let i = 0; ; i++) m.set(i, i)",
        "let v = []; for (;;) v = [v, v.concat(new Array(1e5).fill(1))]",
    ],
)
def test_a_run_that_is_refused_memory_is_told_as_that(code: str) -> None:
    assert error(code)["code"] == "SANDBOX_MEMORY_EXCEEDED"
    assert value("1 + 1") == 2


def test_the_memory_limit_is_that_of_the_run() -> None:
    code = "new Uint8Array(40e6).length"
    assert value(code) == 40_000_000
    assert error(code, memory_limit_bytes=16 << 20)["code"] == "SANDBOX_MEMORY_EXCEEDED"
    assert value(code) == 40_000_000


def test_code_that_goes_on_after_it_was_refused_memory_has_its_value() -> None:
    code = "let m; try { new Uint8Array(5e8) } catch (e) { m = e.message } m"
    assert value(code) == "out of memory"
    assert error(code + "; throw new Error('mine')")["code"] == EXECUTION


SPOIL = """
globalThis.left = 1; Array.prototype.left = 2; Object.prototype.left = 3; var gone = 4;
delete globalThis.JSON; Math.max = () => 0; Symbol.for('left').description;
String.prototype.slice = null; Error.stackTraceLimit = 0;
Error.prepareStackTrace = () => 'spoiled'; console.log = null; URL.prototype.toString = null;
setTimeout(() => { globalThis.late = 1 }, 1); setInterval(() => {}, 1);
Promise.resolve().then(() => 1); console.count('left'); console.group('left');
new FinalizationRegistry(() => {}).register({}, 1); globalThis.ref = new WeakRef({});
RegExp.prototype.exec = null; Object.freeze(Array.prototype);
const big = new Uint8Array(20e6).fill(7);
Promise.prototype.then = null;
"""

SEE = """
let n = 0; const host = [];
for (const key of Object.getOwnPropertyNames(globalThis)) if (/left|late|gone|ref/.test(key)) n++;
console.count('left'); console.log('x');
[n, typeof JSON.stringify, [].left, ({}).left, Math.max(1, 2), 'abc'.slice(1),
 Object.isFrozen(Array.prototype), typeof new Error().stack, await Promise.resolve(5),
 String(new URL('http://h')), /a/.test('a')]
"""


def test_nothing_of_a_run_is_seen_by_the_next() -> None:
    clean = Recorder()
    before = value(SEE, host=clean)
    assert before[:4] == [0, "function", None, None]
    spoiled = run(SPOIL)
    assert spoiled["ok"], spoiled
    host = Recorder()
    assert value(SEE, host=host) == before
    assert host.stdout == clean.stdout == "left: 1\nx\n"


def test_nothing_is_left_of_a_run_that_ran_into_a_wall() -> None:
    assert error("globalThis.left = 1; JSON.parse('['.repeat(1e5))")["name"] == "RangeError"
    assert value("typeof left") == "undefined"


def test_each_run_has_its_own_randomness() -> None:
    code = "[Math.random(), Math.random(), crypto.randomUUID()]"
    runs = [tuple(value(code)) for _ in range(20)]
    assert len({number for run in runs for number in run}) == 60
    engine().prepare()
    assert (
        value("const a = new Set(); for (let i = 0; i < 1000; i++) a.add(Math.random()); a.size")
        == 1000
    )


def test_the_clock_is_that_of_the_run() -> None:
    told = value("[Date.now(), performance.now(), performance.timeOrigin]")
    assert abs(told[0] / 1000 - time.time()) < 5
    assert 0 <= told[1] < 1000
    assert abs(told[2] / 1000 - time.time()) < 5


def test_timers_fire_in_their_order_with_jobs_in_between_and_do_not_hold_the_run() -> None:
    host = Recorder()
    code = """
    const seen = [];
    setTimeout(() => seen.push('b'), 2);
    setTimeout((x) => { seen.push(x); Promise.resolve().then(() => seen.push('job')) }, 1, 'a');
    const stop = setInterval(() => seen.push('i'), 1); clearInterval(stop);
    clearTimeout(setTimeout(() => seen.push('no'), 1));
    setTimeout(() => { throw new Error('never') }, 1e6);
    await new Promise(r => setTimeout(r, 5));
    seen
    """
    assert value(code, host=host) == ["a", "job", "b"]
    assert all(wait < 1 for wait in host.waits)


def test_a_promise_that_nothing_will_settle_waits_for_the_deadline() -> None:
    with pytest.raises(WaitsError):
        run("await new Promise(() => {})")
    assert value("1") == 1


def test_a_context_becomes_globals_that_the_code_may_shadow() -> None:
    assert value("price * (1 + rate)", context={"price": 80, "rate": 0.25}) == 100
    assert value("const x = 1; let y = 2; x + y", context={"x": "old", "y": "old"}) == 3
    assert value("x = 3; globalThis.x", context={"x": 1}) == 3
    given = {"text": "é😀\0\u2028'\"\\`${1}", "__proto__x": [None, {"": []}]}
    assert value("[text, __proto__x]", context=given) == list(given.values())
    names = ["constructor", "toString", "then", "setTimeout", "JSON", "Promise", "host", "begin"]
    for name in names:
        assert value(f"globalThis['{name}']", context={name: 7}) == 7


@pytest.mark.case("esc-03-injected-object")
def test_tools_are_called_and_answered() -> None:
    def answer(tool: str, *args: Any) -> Any:
        if tool == "fail":
            return {"ok": False, "error": {"name": "ToolError", "message": "told"}}
        return {"ok": True, "value": [tool, *args]}

    host = Recorder(answer)
    code = """
    const both = await Promise.all([tools.one(1, { a: [2] }), tools.two('é')]);
    let failed;
    try { await tools.fail() } catch (e) { failed = [e.name, e.message, e instanceof Error] }
    const chain = [tools, tools.one].map(o => {
      try { return o.constructor.constructor('return typeof process')() }
      catch { return 'undefined' }
    });
    [both, failed, Object.isFrozen(tools), Object.getPrototypeOf(tools),
     typeof tools.toString, chain]
    """
    assert value(code, tools=["one", "two", "fail"], host=host) == [
        [["one", 1, {"a": [2]}], ["two", "é"]],
        ["ToolError", "told", True],
        True,
        None,
        "undefined",
        ["undefined", "undefined"],
    ]
    assert [call[:2] for call in host.calls] == [(1, "one"), (2, "two"), (3, "fail")]


@pytest.mark.case("esc-06-host-error-text")
def test_a_failing_tool_tells_its_message_and_the_callers_place() -> None:
    def answer(tool: str) -> Any:
        return {"ok": False, "error": {"name": "ToolError", "message": "told"}}

    told = error("const a = 1;\nawait tools.fail();", tools=["fail"], host=Recorder(answer))
    assert (told["name"], told["message"], told["line"]) == ("ToolError", "told", 2)
    assert "eval_script" not in told["stack"]


def test_arguments_without_json_form_reject_before_anything_is_sent() -> None:
    host = Recorder()
    code = "await tools.one(1, { deep: [2n] })"
    told = error(code, tools=["one"], host=host)
    assert told["message"] == "args[1].deep[0]: a BigInt has no JSON form"
    assert host.calls == []
    assert value("typeof tools") == "undefined"


@pytest.mark.case("esc-01-ctor-chain")
def test_no_host_is_among_the_globals() -> None:
    code = """
    const g = (() => {}).constructor('return globalThis')();
    const names = ['process', 'require', 'Deno', 'Bun', 'module', '__host', 'host', 'std', 'os',
      'fetch'];
    [...names.filter(k => k in g),
     ...Object.getOwnPropertyNames(g).filter(n => /nonce|harness|cloche|frame|host/i.test(n))]
    """
    assert value(code) == []


@pytest.mark.case("esc-04-async-stack-frames")
def test_frames_of_a_stack_give_nothing_of_the_host() -> None:
    code = """
    const seen = [];
    Error.prepareStackTrace = (err, frames) => {
      for (const f of Array.isArray(frames) ? frames : [])
        for (const m of ['getThis', 'getFunction']) {
          const v = typeof f[m] === 'function' ? f[m]() : undefined;
          if (v && v.constructor) seen.push(v.constructor.constructor('return typeof process')());
        }
      return 's';
    };
    async function boom() { await null; null.x }
    await boom().catch(e => String(e.stack));
    seen.every(s => s === 'undefined')
    """
    assert value(code) is True


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("await import('lodash')", "lodash"),
        ("await import('node:fs')", "node:fs"),
        ("await import('./mine.js')", "./mine.js"),
        ("require('left-pad')", "require"),
        ("process.exit(0)", "process"),
        ("fetch('http://h')", "fetch"),
        ("Bun.version", "Bun"),
    ],
)
def test_what_other_runtimes_have_is_refused_by_name_and_says_what_helps(
    code: str, name: str
) -> None:
    told = error(code)
    assert told["code"] == EXECUTION
    assert name in told["message"]
    assert "process sandbox" in told["message"]


@pytest.mark.case("ts-01-enum-namespace")
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("enum Tone { Low, High = 5, Top }\n[Tone[0], Tone.Top]", ["Low", 6]),
        ("namespace N { export const x = 1 }\nN.x", 1),
        ("class P { constructor(private a: number) {} s() { return this.a } }\nnew P(3).s()", 3),
        ("const first = <T,>(x: T[]): T => x[0]!; first([3])", 3),
        ('const n: number = "1" as any; const m: string = 2 as never; n + m + "";', "12"),
    ],
)
def test_typescript_works(code: str, expected: Any) -> None:
    assert value(code, "typescript") == expected


def test_an_error_in_typescript_points_to_the_callers_text() -> None:
    code = "enum A { X }\nconst a: A = A.X;\n\nconst b: any = (null as any).x;\nb"
    told = error(code, "typescript")
    assert told["line"] == 4
    assert "snippet.ts:4:" in told["stack"]


def test_code_that_spoils_the_language_harms_its_own_run_alone() -> None:
    code = """
    for (const holder of [Array, String, Object, Promise, Map, Set, RegExp, Function, Error])
      for (const key of Object.getOwnPropertyNames(holder.prototype))
        if (key !== 'constructor') try { holder.prototype[key] = () => { throw 1 } } catch {}
    [1, { a: 'kept' }]
    """
    assert run(code)["ok"] in (True, False)
    assert value("[1, 2].map(x => x + 1)") == [2, 3]
    code = "JSON.stringify = () => '{\"ok\":false}'; Object.prototype.toJSON = () => 1; ({ a: 1 })"
    assert value(code) == 1
