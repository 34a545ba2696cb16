"""What code finds in the JavaScript engine beside the language: console, URL, texts and bytes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from engine_driver import Recorder, end, error, value


@pytest.fixture(scope="module", autouse=True)
def _engine_ends() -> Iterator[None]:
    yield
    end()


def printed(code: str) -> str:
    host = Recorder()
    value(f"{code}; undefined", host=host)
    assert host.stderr == ""
    return host.stdout


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("", ""),
        ("'a', 1, -0, 1n, null, undefined, true", "a 1 -0 1n null undefined true"),
        ("{ a: 1, b: 'x', c: [1, 2] }", "{ a: 1, b: 'x', c: [ 1, 2 ] }"),
        ("[1, 2], [], {}", "[ 1, 2 ] [] {}"),
        ("['a\\nb', 'it\\'s']", "[ 'a\\nb', \"it's\" ]"),
        ("[undefined, , 3]", "[ undefined, <1 empty item>, 3 ]"),
        ("{ 'a b': 1, 2: 3, [Symbol('s')]: 4 }", "{ '2': 3, 'a b': 1, [Symbol(s)]: 4 }"),
        ("new Map([[1, { a: 2 }]]), new Set(['a'])", "Map(1) { 1 => { a: 2 } } Set(1) { 'a' }"),
        ("() => 1, function f() {}, class A {}", "[Function (anonymous)] [Function: f] [class A]"),
        ("async () => {}", "[AsyncFunction (anonymous)]"),
        ("Symbol('s'), /x/g, new Date(0)", "Symbol(s) /x/g 1970-01-01T00:00:00.000Z"),
        ("new (class B { q = 1 })()", "B { q: 1 }"),
        ("Object.create(null)", "[Object: null prototype] {}"),
        ("new Uint8Array(3)", "Uint8Array(3) [ 0, 0, 0 ]"),
        ("[1, [2, [3, [4, [5]]]]]", "[ 1, [ 2, [ 3, [Array] ] ] ]"),
        ("{ a: { b: { c: { d: 1 } } } }", "{ a: { b: { c: [Object] } } }"),
        ("[new Number(1), new String('s')]", "[ [Number: 1], [String: 's'] ]"),
        ("{ get a() { return 1 }, set a(x) {}, f() {} }",
         "{ a: [Getter/Setter], f: [Function: f] }"),
        ("Object.assign([1], { x: 2 })", "[ 1, x: 2 ]"),
        ("'%s is %d, %i, %f, %j, %o %%', 'a', 5, 6.7, '1.5', { x: 1 }, [1], 'more'",
         "a is 5, 6, 1.5, {\"x\":1}, [ 1 ] % more"),
        ("'100%', 5", "100% 5"),
        ("'%x', 5", "%x 5"),
        ("new Proxy({ a: 1 }, {})", "{ a: 1 }"),
        ("new Proxy({}, { ownKeys() { throw 1 } })", "[an object that cannot be looked at]"),
        ("Promise.resolve(1)", "Promise {}"),
        ("Array.from({ length: 101 }, () => 1).slice(100)", "[ 1 ]"),
    ],
)  # fmt: skip
def test_the_console_prints_values_as_people_know_them(arguments: str, text: str) -> None:
    assert printed(f"console.log({arguments})") == text + "\n"


def test_what_is_long_is_broken_into_lines_and_what_is_very_long_is_cut() -> None:
    wide = printed("console.log({ first: 'a'.repeat(50), second: 'b'.repeat(50) })")
    assert wide == f"{{\n  first: '{'a' * 50}',\n  second: '{'b' * 50}'\n}}\n"
    assert "... 400 more items" in printed("console.log(Array(500).fill(1))")
    assert "... 90000 more characters" in printed("console.log(['x'.repeat(1e5)])")
    assert printed("const o = { a: 1 }; o.o = o; console.log(o)") == "{ a: 1, o: [Circular *1] }\n"
    assert len(printed("console.log('x'.repeat(1e5))")) == 100_001


def test_an_error_is_printed_with_the_callers_places() -> None:
    text = printed("const a = 1;\nconsole.log(new RangeError('mine'))")
    assert text.startswith("RangeError: mine\n    at snippet.js:2:")
    assert "eval_script" not in text


def test_the_console_is_split_over_both_streams_and_in_order() -> None:
    host = Recorder()
    code = """
    console.log('log'); console.warn('warn'); console.info('info'); console.error('error');
    console.debug('debug'); console.assert(true, 'no'); console.assert(false, 'yes');
    console.group('g'); console.log('in\\nside'); console.groupEnd(); console.count();
    console.dir({});
    """
    value(code, host=host)
    assert host.stdout == "log\ninfo\ndebug\ng\n  in\n  side\ndefault: 1\n{}\n"
    assert host.stderr == "warn\nerror\nAssertion failed: yes\n"
    assert [stream for stream, _ in host.pieces[:4]] == ["stdout", "stderr", "stdout", "stderr"]


def test_a_table_has_a_row_for_each_entry() -> None:
    table = printed("console.table([{ a: 1, b: 'x' }, { a: 2 }])").splitlines()
    assert [line.split() for line in table if "│" in line] == [
        ["│", "(index)", "│", "a", "│", "b", "│"],
        ["│", "0", "│", "1", "│", "'x'", "│"],
        ["│", "1", "│", "2", "│", "│"],
    ]


def test_what_is_printed_is_well_formed_and_comes_in_pieces() -> None:
    host = Recorder()
    value("console.log('\\ud800', '😀'.repeat(40000))", host=host)
    assert host.stdout == "\ufffd " + "😀" * 40000 + "\n"
    assert all(len(text) <= 32 * 1024 for _, text in host.pieces)


# href, or None where it is no URL; the same as in Bun.
URLS: list[tuple[str, str | None, str | None]] = [
    ("http://EXAMPLE.com:80/a/../b/./c?x=1 2#f g", None, "http://example.com/b/c?x=1%202#f%20g"),
    ("../x?y", "http://h/a/b/c", "http://h/a/x?y"),
    ("//other/p", "https://h/a", "https://other/p"),
    ("?q", "http://h/a/b?c#d", "http://h/a/b?q"),
    ("#z", "http://h/a/b?c#d", "http://h/a/b?c#z"),
    ("", "http://h/a/b?c#d", "http://h/a/b?c"),
    ("http://0x7f.1/", None, "http://127.0.0.1/"),
    ("http://1.2.3/", None, "http://1.2.0.3/"),
    ("http://256.1.1.1/", None, None),
    ("http://[::1]:8080/", None, "http://[::1]:8080/"),
    ("http://[1:0:0:2:0:0:0:3]/", None, "http://[1:0:0:2::3]/"),
    ("http://[::ffff:1.2.3.4]/", None, "http://[::ffff:102:304]/"),
    ("mailto:a@b.c", None, "mailto:a@b.c"),
    ("data:text/plain,hello world", None, "data:text/plain,hello world"),
    ("file:///a/b/../c", None, "file:///a/c"),
    ("file://localhost/x", None, "file:///x"),
    ("http://user:pa ss@h/", None, "http://user:pa%20ss@h/"),
    ("https:\\\\h\\p", None, "https://h/p"),
    ("http:///h/p", None, "http://h/p"),
    ("nope", None, None),
    ("http://", None, None),
    ("http://a b/", None, None),
    ("http://h:99999/", None, None),
    ("/p", "data:x", None),
    ("http:foo", "http://h/a/b", "http://h/a/foo"),
    ("http://h/é?é#é", None, "http://h/%C3%A9?%C3%A9#%C3%A9"),
    ("http://h/a%2f/%2e%2E/b", None, "http://h/b"),
    ("  http://h/ ", None, "http://h/"),
    ("http://ex%41mple.com/", None, "http://example.com/"),
    ("web+demo:/.//p", None, "web+demo:/.//p"),
    ("http://[::1", None, None),
]


@pytest.mark.parametrize(("text", "base", "href"), URLS, ids=range(len(URLS)))
def test_a_url_is_read_as_the_standard_says(text: str, base: str | None, href: str | None) -> None:
    call = f"URL.parse({json.dumps(text)}{'' if base is None else ', ' + json.dumps(base)})"
    assert value(f"{call}?.href ?? null") == href


def test_the_parts_of_a_url_can_be_read_and_set() -> None:
    code = """
    const u = new URL('https://me:pw@h:8080/a/b?x=1&y#z');
    const parts = [u.origin, u.protocol, u.username, u.password, u.host, u.hostname, u.port,
      u.pathname, u.search, u.hash];
    u.searchParams.append('é', '& ='); u.hash = 'q r'; u.pathname = '/x y?'; u.port = '443';
    u.hostname = 'OTHER'; u.username = 'a:b'; u.password = '';
    [parts, u.href, JSON.stringify({ u }), String(u) === u.toString()]
    """
    href = "https://a%3Ab@other/x%20y%3F?x=1&y=&%C3%A9=%26+%3D#q%20r"
    assert value(code) == [
        ["https://h:8080", "https:", "me", "pw", "h:8080", "h", "8080", "/a/b", "?x=1&y", "#z"],
        href,
        json.dumps({"u": href}, separators=(",", ":")),
        True,
    ]
    assert "not ASCII" in error("new URL('http://bücher.example/')")["message"]


def test_search_params_are_read_changed_and_written() -> None:
    code = """
    const p = new URLSearchParams('?a=1&b=2&a=3&c=%20x+y&d'); p.delete('b'); p.set('a', 5);
    p.append('z', '~*()é'); p.sort();
    [p.getAll('a'), p.get('c'), p.get('no'), p.has('d'), p.size, String(p), [...p.keys()],
     String(new URLSearchParams({ q: 'x&y' })), String(new URLSearchParams([['k', 'v']]))]
    """
    assert value(code) == [
        ["5"], "  x y"[1:], None, True, 4, "a=5&c=+x+y&d=&z=%7E*%28%29%C3%A9", ["a", "c", "d", "z"],
        "q=x%26y", "k=v",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("[...new TextEncoder().encode('é😀\\ud800')]",
         [195, 169, 240, 159, 152, 128, 239, 191, 189]),
        ("new TextEncoder().encode().length", 0),
        ("const b = new Uint8Array(4); [new TextEncoder().encodeInto('aé😀', b), [...b]]",
         [{"read": 2, "written": 3}, [97, 195, 169, 0]]),
        ("new TextDecoder().decode(new Uint8Array([255, 65, 226, 130]))", "\ufffdA\ufffd"),
        ("new TextDecoder().decode(new Uint8Array([239, 187, 191, 65]))", "A"),
        ("new TextDecoder('utf8', { ignoreBOM: true }).decode(new Uint8Array([239, 187, 191]))",
         "\ufeff"),
        ("const d = new TextDecoder(); [226, 130, 172, 65].map((b, i) =>"
         " d.decode(new Uint8Array([b]), { stream: i < 3 })).join('|')", "||€|A"),
        ("const d = new TextDecoder(); const b = new Uint8Array([104, 105]).buffer; d.decode(b)",
         "hi"),
        ("let n; try { new TextDecoder('utf-8', { fatal: true }).decode(new Uint8Array([255])) }"
         " catch (e) { n = e.name } n", "TypeError"),
        ("let n; try { new TextDecoder('latin1') } catch (e) { n = e.name } n", "RangeError"),
        ("[btoa('hé'), atob('aOk='), btoa('')]", ["aOk=", "hé", ""]),
    ],
)  # fmt: skip
def test_texts_become_bytes_and_bytes_texts(code: str, expected: Any) -> None:
    assert value(code) == expected


def test_randomness_comes_from_the_host() -> None:
    code = """
    const bytes = crypto.getRandomValues(new Uint8Array(32));
    let refused, wrong;
    try { crypto.getRandomValues(new Uint8Array(65537)) } catch (e) { refused = e.name }
    try { crypto.getRandomValues(new Float64Array(1)) } catch (e) { wrong = e.name }
    [crypto.randomUUID(), new Set(bytes).size > 8, refused, wrong,
     crypto.getRandomValues(new BigUint64Array(1))[0] > 0n]
    """
    uuid, *rest = value(code)
    assert rest == [True, "QuotaExceededError", "TypeMismatchError", True]
    assert len(uuid) == 36 and uuid[14] == "4" and uuid[19] in "89ab"


def test_a_structured_clone_is_deep_and_keeps_kinds_and_cycles() -> None:
    code = """
    const o = { d: new Date(5), m: new Map([[{ k: 1 }, new Set([2])]]), r: /x/gi, n: null, b: 1n,
      u: undefined, a: [1, , 3], e: new RangeError('mine', { cause: 1 }),
      t: new Uint16Array([1, 2]), w: Object(1), v: new DataView(new ArrayBuffer(2)) };
    o.self = o;
    const c = structuredClone(o);
    [c !== o, c.self === c, c.d.getTime(), c.d instanceof Date, [...c.m][0][0].k,
     [...c.m][0][1].has(2), String(c.r), c.b === 1n, 'u' in c, 1 in c.a, c.e.name, c.e.message,
     c.e.cause, c.t[1], c.t !== o.t, c.w instanceof Number, c.v.byteLength]
    """
    assert value(code) == [
        True, True, 5, True, 1, True, "/x/gi", True, True, False, "RangeError", "mine", 1, 2, True,
        True, 2,
    ]  # fmt: skip
    for what in ("() => 1", "Symbol('s')", "{ f() {} }", "Promise.resolve()", "new WeakMap()"):
        assert error(f"structuredClone({what})")["name"] == "DataCloneError"
    moved = "const b = new ArrayBuffer(8); structuredClone(b, { transfer: [b] }); b.byteLength"
    assert value(moved) == 0


def test_timers_are_objects_and_numbers() -> None:
    code = """
    const t = setTimeout(() => {}, 1e6);
    [typeof t, t.hasRef(), t.unref().hasRef(), +t > 0, clearTimeout(+t), clearTimeout('x'),
     typeof setImmediate(() => {})]
    """
    assert value(code) == ["object", True, False, True, None, None, "object"]
    assert error("setTimeout('code', 1)")["name"] == "TypeError"
