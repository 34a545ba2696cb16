"""`fetch` in the JavaScript engine: a worker host and HTTP servers on loopback."""

import gzip
import json
import os
import select
import threading
import time
import zlib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from engine_driver import end, error, value
from test_worker_guest import WorkerHost, site  # noqa: F401

pytestmark = pytest.mark.live
MEBIBYTE = 1 << 20


class Handler(BaseHTTPRequestHandler):
    """Answers by path; HTTP/1.1."""

    protocol_version = "HTTP/1.1"
    server: "Site"

    def do_GET(self) -> None:
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length)
        with self.server.lock:
            self.server.seen.append((self.command, self.path, list(self.headers.items()), body))
            self.server.now += 1
            self.server.most = max(self.server.most, self.server.now)
        try:
            getattr(self, f"_{self.path.strip('/').split('/')[0].split('?')[0]}")(body)
        except (BrokenPipeError, ConnectionResetError):
            pass
        finally:
            self.server.now -= 1

    do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = do_GET  # noqa: N815

    def answer(self, body: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def raw(self, data: bytes) -> None:
        self.close_connection = True
        self.wfile.write(data)

    def _text(self, body: bytes) -> None:
        self.answer("h\u00e9llo".encode(), Content_Type="text/plain", X_One="1")

    def _echo(self, body: bytes) -> None:
        told = {"method": self.command, "path": self.path, "body": body.decode("latin-1"),
                "headers": {k.lower(): v for k, v in self.headers.items()}}  # fmt: skip
        self.answer(json.dumps(told).encode())

    def _status(self, body: bytes) -> None:
        self.answer(b"", int(self.path.split("/")[2]))

    def _to(self, body: bytes) -> None:
        _, _, status, *place = self.path.split("/")
        self.answer(b"moved", int(status), Location="/" + "/".join(place))

    def _away(self, body: bytes) -> None:
        port = self.path.split("/")[2]
        self.answer(b"moved", 302, Location=f"http://localhost:{port}/echo")

    def _loop(self, body: bytes) -> None:
        self.answer(b"again", 302, Location=f"/loop/{int(self.path.split('/')[2]) + 1}")

    def _scheme(self, body: bytes) -> None:
        self.answer(b"", 302, Location="file:///etc/passwd")

    def _gzip(self, body: bytes) -> None:
        self.answer(gzip.compress(b"packed") + gzip.compress(b" twice"), Content_Encoding="gzip")

    def _deflate(self, body: bytes) -> None:
        bare = self.path.endswith("bare")
        packer = zlib.compressobj(wbits=-15 if bare else 15)
        self.answer(packer.compress(b"packed") + packer.flush(), Content_Encoding="deflate")

    def _bomb(self, body: bytes) -> None:
        packer = zlib.compressobj(wbits=31)
        zeros = bytes(MEBIBYTE)
        packed = b"".join(packer.compress(zeros) for _ in range(200)) + packer.flush()
        self.answer(packed, Content_Encoding="gzip")

    def _halfpacked(self, body: bytes) -> None:
        self.answer(gzip.compress(os.urandom(999))[:-20], Content_Encoding="gzip")

    def _large(self, body: bytes) -> None:
        count = int(self.path.split("/")[2])
        self.answer(b"x" * count)

    def _endless(self, body: bytes) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            self.wfile.write(b"y" * 65536)

    def _chunks(self, body: bytes) -> None:
        head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
        self.raw(head + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n")

    def _negative(self, body: bytes) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nabc")

    def _short(self, body: bytes) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\nabc")

    def _early(self, body: bytes) -> None:
        self.raw(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 3
                 + b"HTTP/1.1 200 Fine\r\nContent-Length: 4\r\n\r\nlate")  # fmt: skip

    def _hints(self, body: bytes) -> None:
        while True:
            self.raw(b"HTTP/1.1 103 Early Hints\r\nLink: <x>\r\n\r\n" * 100)

    def _heads(self, body: bytes) -> None:
        line = b"X-Long: " + b"z" * 60000 + b"\r\n"
        self.raw(b"HTTP/1.1 200 OK\r\n" + line * 20 + b"\r\n")

    def _garbage(self, body: bytes) -> None:
        self.raw(b"SSH-2.0-hello\r\n\r\n")

    def _gone(self, body: bytes) -> None:
        self.close_connection = True

    def _cookies(self, body: bytes) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\nX-A: 1\r\nX-A: 2\r\n"
                 b"Content-Length: 0\r\n\r\n")  # fmt: skip

    def _late(self, body: bytes) -> None:
        self.server.release.wait(20)
        self.answer(b"late")

    def _slowbody(self, body: bytes) -> None:
        self.raw(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nab")
        self.server.release.wait(20)
        self.wfile.write(b"cd")

    def _gather(self, body: bytes) -> None:
        time.sleep(0.002)  # long enough for others to come meanwhile
        self.answer(self.path.encode())

    def log_message(self, *args: Any) -> None:
        """Say nothing."""


class Site(ThreadingHTTPServer):
    """A server on loopback."""

    request_queue_size = 128
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock = threading.Lock()
        self.seen: list[tuple[str, str, list[tuple[str, str]], bytes]] = []
        self.now = self.most = 0
        self.release = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,))
        self.thread.start()

    def end(self) -> None:
        self.release.set()
        self.shutdown()
        self.thread.join()
        self.server_close()


@pytest.fixture
def web() -> Iterator[Site]:
    server = Site()
    try:
        yield server
    finally:
        server.end()


@pytest.fixture(scope="module")
def _one(site: Path) -> Iterator[WorkerHost]:  # noqa: F811
    host = WorkerHost("javascript", str(site))
    host.frame(bytes(16))
    yield host
    host.end(kill=True)


@pytest.fixture
def host(_one: WorkerHost, web: Site) -> Iterator["Code"]:
    yield Code(_one, web)
    end()


class Code:
    """Runs code that knows where the site is."""

    def __init__(self, worker: WorkerHost, web: Site) -> None:
        self.worker, self.web = worker, web

    def frame(self, code: str, **fields: Any) -> dict[str, Any]:
        context = {"url": self.web.url, **fields.pop("context", {})}
        return self.worker.run(code, network=True, context=context, **fields)

    def value(self, code: str, **fields: Any) -> Any:
        frame = self.frame(code, **fields)
        assert frame["ok"], frame
        return frame.get("value")

    def error(self, code: str, **fields: Any) -> Any:
        frame = self.frame(code, **fields)
        assert not frame["ok"], frame
        return frame["error"]


def test_without_network_there_is_no_fetch_and_an_error_says_so() -> None:
    try:
        names = "[typeof fetch, typeof Headers, typeof Request, typeof Response]"
        assert value(names) == ["undefined"] * 4
        assert value(names, network=True) == ["function"] * 4
        told = error("await fetch('http://a.test/')")
        assert told["message"].startswith("fetch is not available in the worker sandbox; use")
    finally:
        end()


def test_a_response_has_its_status_headers_and_body(host: Code) -> None:
    code = """
      const r = await fetch(`${url}/text?q=1#part`);
      [r.status, r.statusText, r.ok, r.url, r.redirected, r.headers.get("X-ONE"),
       r.headers.get("none"), r.bodyUsed, await r.text(), r.bodyUsed]"""
    assert host.value(code) == [
        200, "OK", True, f"{host.web.url}/text?q=1", False, "1", None, False, "h\u00e9llo", True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("read", "expected"),
    [
        ("r.text()", '{"a":1}'),
        ("r.json()", {"a": 1}),
        ("r.bytes().then(b => [b instanceof Uint8Array, b.length])", [True, 7]),
        ("r.arrayBuffer().then(b => [b instanceof ArrayBuffer, b.byteLength])", [True, 7]),
        ("Promise.all([r.clone().text(), r.bytes().then(b => b.length)])", ['{"a":1}', 7]),
    ],
)
def test_a_body_is_read_as_text_json_or_bytes(host: Code, read: str, expected: Any) -> None:
    code = "const e = await fetch(`${url}/echo`, {method: 'POST', body: '{\"a\":1}'});"
    code += "const r = new Response((await e.json()).body);" + read
    assert host.value(code) == expected


def test_a_body_is_read_once(host: Code) -> None:
    code = "const r = await fetch(`${url}/text`); await r.text(); await r.json()"
    told = host.error(code)
    assert (told["name"], told["message"]) == ("TypeError", "the body was used already")


def test_streams_are_refused_with_what_to_use_instead(host: Code) -> None:
    told = host.error("const r = await fetch(`${url}/text`); r.body.getReader()")
    assert "use text(), json(), bytes()" in told["message"]
    assert host.value("(await fetch(`${url}/status/204`)).body") is None


def test_a_request_goes_out_as_it_was_made(host: Code) -> None:
    code = """
      const sent = [
        await fetch(`${url}/echo`, {method: "post", body: "h\u00e9", headers: {"X-A": " b "}}),
        await fetch(`${url}/echo`, {method: "PUT", body: new URLSearchParams({a: "1 2"})}),
        await fetch(`${url}/echo`, {method: "PATCH", body: new Uint8Array([0, 255]).buffer}),
        await fetch(new Request(`${url}/echo`, {method: "DELETE", headers: [["x-b", "c"]]})),
        await fetch(`${url}/echo`, {method: "POST"}),
        await fetch(new URL("/echo?x=%20", url)),
      ];
      await Promise.all(sent.map(r => r.json()))"""
    text, form, octets, plain, empty, get = host.value(code)
    assert (text["method"], text["body"].encode("latin-1").decode()) == ("POST", "h\u00e9")
    assert text["headers"]["content-type"] == "text/plain;charset=UTF-8"
    assert (text["headers"]["x-a"], text["headers"]["content-length"]) == ("b", "3")
    assert form["body"] == "a=1+2"
    assert form["headers"]["content-type"] == "application/x-www-form-urlencoded;charset=UTF-8"
    assert (octets["method"], octets["body"]) == ("PATCH", "\0\xff")
    assert "content-type" not in octets["headers"]
    assert (plain["method"], plain["headers"]["x-b"]) == ("DELETE", "c")
    assert empty["headers"]["content-length"] == "0"
    assert get["path"] == "/echo?x=%20"
    assert get["headers"]["host"] == host.web.url.removeprefix("http://")
    assert "content-length" not in get["headers"]


def test_headers_that_belong_to_the_connection_are_ignored_as_the_standard_says(host: Code) -> None:
    code = """
      const headers = {Host: "evil.test", Cookie: "a=1", "Content-Length": "5", "proxy-x": "1",
        "Sec-Fetch-Mode": "x", Connection: "keep-alive", "Transfer-Encoding": "chunked",
        "X-Method-Override": "TRACE", "X-Fine": "1"};
      (await (await fetch(`${url}/echo`, {headers})).json()).headers"""
    seen = host.value(code)
    assert seen["host"] == host.web.url.removeprefix("http://")
    assert (seen["connection"], seen["x-fine"]) == ("close", "1")
    for name in ("cookie", "content-length", "proxy-x", "sec-fetch-mode", "transfer-encoding",
                 "x-method-override"):  # fmt: skip
        assert name not in seen


@pytest.mark.parametrize(
    ("call", "words"),
    [
        ("fetch('ftp://a.test/')", "only http: and https:"),
        ("fetch('file:///etc/passwd')", "only http: and https:"),
        ("fetch('data:text/plain,x')", "only http: and https:"),
        ("fetch('/relative')", "is no URL"),
        ("fetch('http://u:p@a.test/')", "a user or a password"),
        ("fetch(url, {method: 'CONNECT'})", "is no method"),
        ("fetch(url, {method: 'trace'})", "is no method"),
        ("fetch(url, {method: 'GET /x HTTP/1.1\\r\\nX: y\\r\\n'})", "is no method"),
        ("fetch(url, {headers: {'x': 'a\\r\\nHost: evil.test'}})", "characters that no header"),
        ("fetch(url, {headers: {'x y': '1'}})", "is no name of a header"),
        ("fetch(url, {body: 'x'})", "GET has no body"),
        ("fetch(url, {redirect: 'never'})", "redirect: follow, error, manual"),
        ("fetch(url, {signal: {}})", "signal"),
        ("fetch(url, {integrity: 'sha256-x'})", "integrity"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_a_byte_is_sent(
    host: Code, call: str, words: str
) -> None:
    told = host.error(f"await {call}")
    assert told["name"] == "TypeError"
    assert words in told["message"]
    assert host.web.seen == []


@pytest.mark.parametrize(
    ("status", "method", "arrives"),
    [
        (301, "POST", "GET"), (302, "POST", "GET"), (303, "PUT", "GET"), (303, "HEAD", "HEAD"),
        (307, "POST", "POST"), (308, "PUT", "PUT"), (301, "PUT", "PUT"), (302, "GET", "GET"),
    ],
)  # fmt: skip
def test_redirects_change_the_method_as_the_standard_says(
    host: Code, status: int, method: str, arrives: str
) -> None:
    body = "" if method in ("GET", "HEAD") else ", body: 'data'"
    code = f"""
      const r = await fetch(`${{url}}/to/{status}/echo/here`, {{method: "{method}"{body}}});
      [r.status, r.redirected, r.url]"""
    assert host.value(code) == [200, True, f"{host.web.url}/echo/here"]
    came, path, headers, data = host.web.seen[-1]
    assert (came, path) == (arrives, "/echo/here")
    assert data == (b"data" if arrives == method and body else b"")
    if arrives == "GET":
        assert "content-type" not in {name.lower() for name, _ in headers}


def test_redirects_can_be_refused_or_left_alone_and_end_after_twenty(host: Code) -> None:
    told = host.error("await fetch(`${url}/to/302/text`, {redirect: 'error'})")
    assert told["message"].startswith("fetch failed: 127.0.0.1:")
    code = "const r = await fetch(`${url}/to/302/text`, {redirect: 'manual'});"
    assert host.value(f"{code} [r.status, r.headers.get('location'), await r.text()]") == [
        302, "/text", "moved",
    ]  # fmt: skip
    host.web.seen.clear()
    told = host.error("await fetch(`${url}/loop/0`)")
    assert "redirects more than 20 times" in told["message"]
    assert len(host.web.seen) == 21
    told = host.error("await fetch(`${url}/scheme`)")
    assert "only http: and https: can be fetched" in told["message"]


def test_a_redirect_to_another_origin_does_not_take_the_authorization_along(host: Code) -> None:
    port = host.web.url.rpartition(":")[2]
    code = "const headers = {authorization: 'Bearer x', 'x-a': '1'};"
    code += "(await (await fetch(`${url}/%s`, {headers})).json()).headers"
    assert host.value(code % "to/302/echo")["authorization"] == "Bearer x"
    other = host.value(code % f"away/{port}")
    assert "authorization" not in other
    assert other["x-a"] == "1"


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("gzip", "packed twice"), ("deflate", "packed"), ("deflate/bare", "packed"),
        ("chunks", "abcde"), ("early", "late"),
    ],
)  # fmt: skip
def test_bodies_are_decoded(host: Code, path: str, text: str) -> None:
    assert host.value(f"await (await fetch(`${{url}}/{path}`)).text()") == text


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("bomb", "over 33554432 bytes"),
        ("endless", "over 33554432 bytes"),
        ("large/33554433", "over 33554432 bytes"),
        ("halfpacked", "ended early"),
        ("short", "ended early"),
        ("negative", "no HTTP response"),
        ("garbage", "no HTTP response"),
        ("hints", "head of the response is over"),
        ("heads", "head of the response is over"),
        ("gone", "closed the connection"),
    ],
)
def test_a_response_that_is_wrong_or_too_large_is_a_type_error(
    host: Code, path: str, words: str
) -> None:
    told = host.error(f"await (await fetch(`${{url}}/{path}`)).text()")
    assert (told["code"], told["name"]) == ("SANDBOX_EXECUTION_ERROR", "TypeError")
    place = host.web.url.removeprefix("http://")
    assert told["message"].startswith(f"fetch failed: {place}")
    assert words in told["message"]
    assert told["line"] == 1
    assert host.value("1 + 1") == 2


def test_a_body_that_the_engine_has_no_room_for_is_the_memory_limit(host: Code) -> None:
    code = "const r = await fetch(`${url}/large/30000000`); (await r.bytes()).length"
    assert host.value(code, memory_limit_bytes=128 << 20) == 30_000_000
    told = host.error(code, memory_limit_bytes=16 << 20)
    assert told["code"] == "SANDBOX_MEMORY_EXCEEDED"


def test_values_of_one_header_are_joined_and_cookies_are_told_one_by_one(host: Code) -> None:
    code = """
      const { headers } = await fetch(`${url}/cookies`);
      let refused; try { headers.set("a", "b") } catch (error) { refused = error.name }
      [headers.get("x-a"), headers.getSetCookie(), [...headers], refused]"""
    joined, cookies, pairs, refused = host.value(code)
    assert (joined, cookies, refused) == ("1, 2", ["a=1", "b=2"], "TypeError")
    assert [name for name, _ in pairs] == ["content-length", "set-cookie", "set-cookie", "x-a"]


def test_names_and_ports_that_nobody_has_are_named(host: Code) -> None:
    told = host.error("await fetch('http://nowhere.invalid/x')")
    assert told["message"].startswith("fetch failed: nowhere.invalid ")
    told = host.error("await fetch('http://127.0.0.1:1/')")
    assert told["message"].startswith("fetch failed: 127.0.0.1:1 does not listen")
    told = host.error(f"await fetch('http://{'a' * 70}.test/')")
    assert told["message"].startswith("fetch failed: aaa")


def test_a_signal_ends_a_fetch_with_its_reason(host: Code) -> None:
    code = """
      const control = new AbortController();
      const got = fetch(`${url}/late`, { signal: control.signal }).catch(e => e);
      setTimeout(() => control.abort(), 30);
      const timed = await fetch(`${url}/late`, { signal: AbortSignal.timeout(20) }).catch(e => e);
      const before = await fetch(url, { signal: AbortSignal.abort("why") }).catch(e => e);
      const slow = await fetch(`${url}/slowbody`, { signal: AbortSignal.any([control.signal]) })
        .then(r => r.text()).catch(e => e);
      [(await got).name, timed.name, before, slow.name]"""
    assert host.value(code) == ["AbortError", "TimeoutError", "why", "AbortError"]


def test_a_run_that_waits_for_the_network_uses_no_time(host: Code) -> None:
    host.value("await (await fetch(`${url}/text`)).text()")
    ticks = _cpu_ticks(host.worker.pid)
    code = "await fetch(`${url}/late`, { signal: AbortSignal.timeout(200) }).catch(e => e.name)"
    assert host.value(code) == "TimeoutError"
    assert _cpu_ticks(host.worker.pid) - ticks <= 4


def _cpu_ticks(pid: int) -> int:
    return sum(map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]))


def test_a_thousand_fetches_all_come_eight_at_a_time(host: Code) -> None:
    code = """
      const all = Array.from({length: 1000}, (_, i) => fetch(`${url}/gather/${i}`));
      const texts = await Promise.all(all.map(async r => (await r).text()));
      texts.every((text, i) => text === `/gather/${i}`) && texts.length"""
    assert host.value(code) == 1000
    assert 1 < host.web.most <= 16  # the server counts one until after it is heard


def test_what_a_run_left_under_way_ends_with_it(host: Code) -> None:
    place = Path(f"/proc/{host.worker.pid}")

    def held() -> tuple[int, int]:
        return len(list((place / "task").iterdir())), len(list((place / "fd").iterdir()))

    host.value("await (await fetch(`${url}/text`)).text()")
    before = held()
    for count in (1, 6, 100):
        code = f"for (let i = 0; i < {count}; i++) fetch(`${{url}}/late`);"
        wait = "await fetch(`${url}/text`);" if count < 8 else ""
        assert host.value(f"{code} {wait} 1") == 1
        deadline = time.monotonic() + 2
        while held() != before and time.monotonic() < deadline:
            time.sleep(0.002)  # a thread that has ended is the kernel's for a moment longer
        assert held() == before
    host.web.release.set()
    # Ids begin anew: an answer to a fetch of an earlier run would be taken for this one's.
    assert host.value("await (await fetch(`${url}/text`)).text()") == "h\u00e9llo"


def test_tools_and_fetches_go_on_side_by_side(host: Code) -> None:
    host.worker.request(
        "const [a, b] = await Promise.all([tools.one(), fetch(`${url}/text`)]);"
        "[a, b.status]",
        network=True, tools=["one"], context={"url": host.web.url},
    )  # fmt: skip
    assert host.worker.frame()["call"] == 1
    assert not select.select([host.worker._reader], [], [], 0.05)[0]
    host.worker.send({"answer": 1, "ok": True, "value": "tool"})
    assert host.worker.frame() == {"ok": True, "value": ["tool", 200]}


def test_code_that_changed_every_prototype_still_gets_its_answer(host: Code) -> None:
    code = """
      const kept = ["constructor", "concat"]; // the engine's template literals call concat
      for (const Kind of [Array, String, Map, Uint8Array, RegExp])
        for (const name of Object.getOwnPropertyNames(Kind.prototype))
          if (name !== kept[0] && name !== kept[1])
            try { Kind.prototype[name] = () => { throw 1 } } catch {}
      URL = Headers = undefined;
      fetch(url + "/text").then(r => r.text())"""
    assert host.value(code) == "h\u00e9llo"


@pytest.mark.parametrize(
    "made", ["'['.repeat(1e5)", "'{}'", "'7'", "'{\"method\":1}'", "'\\0'", "'x'.repeat(1e6)"]
)
def test_code_that_forges_a_request_harms_its_own_run_alone(host: Code, made: str) -> None:
    forge = f"const made = {made}; Object.prototype.toJSON = () => made;"
    forge += "String.prototype.concat = () => made;"  # the engine's template literals call it
    host.frame(f"{forge} await fetch(url)")
    assert host.value("await (await fetch(`${url}/text`)).text()") == "h\u00e9llo"


def test_an_objects_own_way_to_json_does_not_change_a_request(host: Code) -> None:
    code = "Object.prototype.toJSON = () => 7; (await fetch(`${url}/echo`)).text()"
    told = json.loads(host.value(code))
    assert (told["method"], told["path"]) == ("GET", "/echo")


def test_an_abort_is_heard_once_by_each_listener_with_and_without_network() -> None:
    code = """
      const seen = [], control = new AbortController(), { signal } = control;
      const hear = (event) => seen.push(event.type, event.target === signal);
      signal.onabort = hear;
      signal.addEventListener("abort", hear); signal.addEventListener("abort", hear);
      const any = AbortSignal.any([signal]);
      control.abort("r"); control.abort("s");
      let thrown; try { signal.throwIfAborted() } catch (error) { thrown = error }
      const timed = await new Promise((r) => {
        AbortSignal.timeout(1).onabort = (e) => r(e.target.reason.name);
      });
      [seen, signal.reason, any.reason, thrown, timed, control instanceof AbortController]"""
    try:
        assert value(code) == [["abort", True] * 2, "r", "r", "r", "TimeoutError", True]
        assert error("new AbortSignal()")["name"] == "TypeError"
    finally:
        end()
