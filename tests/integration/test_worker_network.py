"""`fetch` in the worker sandbox: real hosts with egress, and an Internet on loopback."""

import asyncio
import shutil
import socket
from contextlib import asynccontextmanager, suppress
from functools import partial

import pytest

from cloche.backends.namespaces import NamespacesBackend
from cloche.egress.transparent import TransparentEgress
from cloche.environments.workers import worker_environment
from cloche.errors import InvalidRequestError
from cloche.linux.netns import CaughtSockets
from cloche.model.snippet import SandboxErrorCode, SandboxOptions
from cloche.snippets.worker import WorkerSandbox
from egress_site import PUBLIC, Outside, make_certificate
from needs import BOX, needs

pytestmark = needs(*BOX, "worker-engines")
MEBIBYTE = 1 << 20
GET = "await fetch(%r).then(r => r.text(), e => `${e.name}: ${e.message}`)"


@asynccontextmanager
async def worker(there, *, serve=None, **fields):
    """A worker sandbox whose hosts reach `there`."""
    serve = serve or partial(TransparentEgress, resolve=there.resolve, dial=there.dial)
    backend = NamespacesBackend()
    options = SandboxOptions(pool_size=1, timeout_ms=10_000, **fields)
    sandbox = WorkerSandbox(options, backend, serve_egress=serve)
    try:
        yield sandbox
    finally:
        await sandbox.dispose()
        await there.close()
        await backend.close()


async def only_host(sandbox):
    """The host that served the runs so far, if it is one."""
    (host,) = (await sandbox.hosts_of("javascript", (80, 443)))._idle
    return host


def test_allowed_hosts_are_reached_and_others_are_told_in_denied():
    async def work():
        there = Outside(api_example_test=[(PUBLIC,)], evil_test=[(PUBLIC,)])
        await there.serve(80)
        async with worker(there) as sandbox:
            urls = ["http://api.example.test/path?q=1", "http://evil.test/", "http://10.0.0.1/",
                    "http://127.0.0.1/", "http://[::1]/", "http://api.example.test:81/",
                    "http://169.254.169.254/latest/"]  # fmt: skip
            code = f"[{', '.join(GET % url for url in urls)}]"
            result = await sandbox.run(code, allow_hosts=["api.example.test"])
            off = await sandbox.run("typeof fetch")
            missing = await sandbox.run("await fetch('http://api.example.test/')")
            return result, off, missing, there

    result, off, missing, there = asyncio.run(work())
    reached, *refused = result.value
    assert reached == "hello from outside"
    for told, host in zip(
        refused,
        ("evil.test", "10.0.0.1", "127.0.0.1", "[::1]", "api.example.test:81", "169.254.169.254"),
        strict=True,
    ):
        assert told.startswith(f"TypeError: fetch failed: {host}"), told
        assert "/opt" not in told and "/usr" not in told
    assert result.denied[0] == "evil.test (not in allow_hosts)"
    assert {entry.partition(":")[0] for entry in result.denied[1:]} == {
        "10.0.0.1", "127.0.0.1", "169.254.169.254",
    }  # fmt: skip
    assert there.dials == [(PUBLIC, 80)]
    assert [head.split(b"\r\n")[0] for head in there.requests] == [b"GET /path?q=1 HTTP/1.1"]
    assert off.value == "undefined"
    assert missing.error_code == SandboxErrorCode.EXECUTION_ERROR
    assert "fetch is not available in the worker sandbox" in missing.error


def test_tls_is_checked_by_the_authorities_that_this_host_trusts(tmp_path, monkeypatch):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    certificate = make_certificate(tmp_path, "api.example.test")
    tmp_path.chmod(0o755)

    async def work():
        there = Outside(api_example_test=[(PUBLIC,)], other_test=[(PUBLIC,)])
        await there.serve(443, tls=certificate)
        async with worker(there) as sandbox:
            code = f"[{GET % 'https://api.example.test/'}, {GET % 'https://other.test/'}]"
            return await sandbox.run(code, allow_hosts=["api.example.test", "other.test"])

    worker_environment.cache_clear()
    strange = asyncio.run(work()).value
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate[2]))
    worker_environment.cache_clear()
    try:
        known = asyncio.run(work()).value
    finally:
        worker_environment.cache_clear()
    words = "its certificate is not accepted"
    assert all(words in told for told in strange)
    assert known[0] == "hello from outside"
    assert words in known[1] and "other.test" in known[1]


def test_rules_are_those_of_the_run_and_not_of_its_host():
    async def work():
        there = Outside(first_test=[(PUBLIC,)], second_test=[(PUBLIC,)])
        await there.serve(80)
        async with worker(there) as sandbox:
            code = f"[{GET % 'http://first.test/'}, {GET % 'http://second.test/'}]"
            results, hosts = [], set()
            for name in ("first.test", "second.test", "third.test"):
                results.append(await sandbox.run(code, allow_hosts=[name]))
                hosts.add(await only_host(sandbox))
            return results, hosts

    (first, second, third), hosts = asyncio.run(work())
    assert len(hosts) == 1
    assert [text == "hello from outside" for text in first.value] == [True, False]
    assert [text == "hello from outside" for text in second.value] == [False, True]
    assert [text == "hello from outside" for text in third.value] == [False, False]
    assert first.denied == ("second.test (not in allow_hosts)",)
    assert second.denied == ("first.test (not in allow_hosts)",)
    assert len(third.denied) == 2


def test_a_fetch_that_a_run_left_under_way_is_not_seen_by_the_next_one():
    async def work():
        came, gone = asyncio.Event(), asyncio.Event()

        async def never(reader, writer):
            came.set()
            try:
                while await reader.read(99):
                    pass
            except ConnectionResetError:
                pass
            gone.set()
            writer.close()

        there = Outside(slow_test=[(PUBLIC,)], next_test=[(PUBLIC,)])
        await there.serve(80, never)
        async with worker(there) as sandbox:
            code = "fetch('http://slow.test/'); await new Promise(r => setTimeout(r, 200)); 1"
            first = await sandbox.run(code, allow_hosts=["slow.test"])
            host = await only_host(sandbox)
            async with asyncio.timeout(5):
                await came.wait()
                await gone.wait()
            there.servers[80].close()
            await there.serve(80)
            second = await sandbox.run(GET % "http://next.test/", allow_hosts=["next.test"])
            assert await only_host(sandbox) is host
            return first, second

    first, second = asyncio.run(work())
    assert (first.value, second.value) == (1, "hello from outside")
    assert second.denied == ()


class Deaf(TransparentEgress):
    """Answers questions, and accepts no connection: they wait in the box's listeners."""

    def _accept_more(self):
        pass


@pytest.mark.parametrize("is_drained", [True, False], ids=["promise", "control"])
def test_a_connection_that_nobody_took_is_not_taken_under_the_next_runs_rules(
    monkeypatch, is_drained
):
    if not is_drained:
        monkeypatch.setattr(CaughtSockets, "drain", lambda sockets: None)

    async def work():
        there = Outside(first_test=[(PUBLIC,)], second_test=[(PUBLIC,)])
        await there.serve(80)
        kinds = [Deaf, TransparentEgress]

        def serve(rules, sockets):
            return kinds.pop(0)(rules, sockets, resolve=there.resolve, dial=there.dial)

        async with worker(there, serve=serve) as sandbox:
            code = "fetch('http://first.test/secret'); await new Promise(r => setTimeout(r, 200))"
            first = await sandbox.run(code, allow_hosts=["first.test"])
            second = await sandbox.run(GET % "http://second.test/open", allow_hosts=["second.test"])
            return first, second, there.requests

    first, second, requests = asyncio.run(work())
    assert (first.value, second.value) == (None, "hello from outside")
    leaked = second.denied != () or any(b"/secret" in head for head in requests)
    assert leaked is not is_drained


def test_draining_ends_what_waits_and_nothing_that_comes_later():
    listener = socket.create_server(("127.0.0.1", 0))
    names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    names.bind(("127.0.0.1", 0))
    sockets = CaughtSockets(names, {80: listener})
    try:
        early = [socket.create_connection(listener.getsockname(), 5) for _ in range(3)]
        early[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
        asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        asking.sendto(b"question", names.getsockname())
        sockets.drain()
        with pytest.raises(BlockingIOError):
            listener.accept()
        with pytest.raises(BlockingIOError):
            names.recv(99)
        for each in early:
            with suppress(ConnectionResetError):
                assert each.recv(1) == b""
            each.close()
        with socket.create_connection(listener.getsockname(), 5):
            listener.accept()[0].close()
        asking.close()
    finally:
        sockets.close()


def test_a_redirect_to_a_private_address_is_refused():
    async def work():
        async def redirect(reader, writer):
            head = await reader.readuntil(b"\r\n\r\n")
            place = head.split()[1].removeprefix(b"/")
            writer.write(b"HTTP/1.1 302 Found\r\nLocation: http://%b/\r\n\r\n" % place)
            writer.close()

        there = Outside(api_example_test=[(PUBLIC,)], inner_test=[("10.0.0.8",)])
        await there.serve(80, redirect)
        places = ("10.0.0.1", "169.254.169.254", "127.0.0.1", "inner.test", "other.test")
        code = f"[{', '.join(GET % f'http://api.example.test/{place}' for place in places)}]"
        async with worker(there) as sandbox:
            named = await sandbox.run(code, allow_hosts=["api.example.test", "inner.test"])
            public = await sandbox.run(code, allow_network=True)
            return named, public, there.dials

    named, public, dials = asyncio.run(work())
    for result in (named, public):
        assert all(told.startswith("TypeError: fetch failed: ") for told in result.value)
        for place in ("10.0.0.1", "169.254.169.254", "127.0.0.1", "inner.test"):
            assert any(entry.startswith(place) for entry in result.denied), (place, result.denied)
    assert set(dials) == {(PUBLIC, 80)}


def test_many_fetches_are_bounded_by_the_connections_that_a_run_may_make():
    async def work():
        there = Outside(api_example_test=[(PUBLIC,)])
        await there.serve(80)
        code = """
          const all = Array.from({length: 1005}, () => fetch("http://api.example.test/"));
          const got = await Promise.allSettled(all);
          const failed = got.filter(one => one.status === "rejected");
          [got.length - failed.length, failed.map(one => one.reason.message)]"""
        async with worker(there, memory_limit_mb=128) as sandbox:
            result = await sandbox.run(code, allow_hosts=["api.example.test"], timeout_ms=60_000)
            after = await sandbox.run(
                GET % "http://api.example.test/", allow_hosts=["api.example.test"]
            )
            return result, after

    result, after = asyncio.run(work())
    assert result.value == [1000, ["fetch failed: over 1000 requests in one run"] * 5]
    assert result.denied == ()
    assert after.ok


def test_a_response_without_end_is_a_failure_and_the_host_goes_on():
    async def work():
        async def endless(reader, writer):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
            try:
                while True:
                    writer.write(bytes(65536))
                    await writer.drain()
            except ConnectionError:
                writer.close()

        there = Outside(api_example_test=[(PUBLIC,)])
        await there.serve(80, endless)
        code = "const r = await fetch('http://api.example.test/'); await r.bytes()"
        async with worker(there) as sandbox:
            hosts = ["api.example.test"]
            return [await sandbox.run(code, allow_hosts=hosts), await sandbox.run("1 + 1")]

    told, after = asyncio.run(work())
    assert told.error_code == SandboxErrorCode.EXECUTION_ERROR
    assert "over 33554432 bytes" in told.error
    assert after.value == 2


def test_a_server_that_does_not_answer_ends_with_the_runs_time():
    async def work():
        async def never(reader, writer):
            try:
                while await reader.read(9999):
                    pass
            except ConnectionResetError:
                pass
            writer.close()

        there = Outside(api_example_test=[(PUBLIC,)])
        await there.serve(80, never)
        async with worker(there) as sandbox:
            hosts = ["api.example.test"]
            await sandbox.run("1", allow_hosts=hosts)  # a host is there
            late = await sandbox.run(
                "await fetch('http://api.example.test/')", allow_hosts=hosts, timeout_ms=400
            )
            return late, await sandbox.run("1 + 1", allow_hosts=hosts)

    late, after = asyncio.run(work())
    assert late.error_code == SandboxErrorCode.TIMEOUT
    assert late.duration_ms < 1500
    assert after.value == 2


@pytest.mark.parametrize("fields", [{"allow_hosts": ["a.test"]}, {"allow_network": True}])
def test_python_in_the_worker_has_no_network_and_says_where_there_is_one(fields):
    async def work():
        async with worker(Outside()) as sandbox:
            await sandbox.run("1", language="python", **fields)

    with pytest.raises(InvalidRequestError, match="Monty has no network; use the process sandbox"):
        asyncio.run(work())
