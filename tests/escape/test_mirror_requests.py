"""Threat: a box uses the registry's mirror for anything but the lockfile's tarballs.

The mirror listens on loopback here, as it does in a box; a real registry stands behind it and
writes down all that it is asked. The control is in every test: a plain request for a tarball is
answered with its bytes.
"""

import asyncio
import json
import socket
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cloche.egress import mirror as mirror_module
from cloche.egress import registry as registry_module
from cloche.egress.mirror import DENIALS_LIMIT_COUNT, Mirror, tarball_paths
from cloche.egress.registry import Registry
from cloche.egress.requests import HEAD_BYTES_LIMIT
from cloche.model.job import ReasonCode
from cloche.settings import Address, NpmSettings
from cloche.store.packages import PackageStore
from registry_server import RegistryServer, hang_up, held, make_tarball, status, truncated

A = "/a/-/a-1.0.0.tgz"
SECRET = "canary-5ec4e7"
PATIENCE_S = 20


class Site:
    """An upstream registry with a few packages, and a mirror of some of them."""

    def __init__(self, server, folder):
        self.server = server
        self.store = PackageStore(folder / "packages")
        self.a = server.add("a", "1.0.0")
        self.tool = server.add("@acme/tool", "2.0.0")
        self.big = server.add("big", "1.0.0", b"0123456789abcdef" * 512 * 1024)
        self.packages = [self.a, self.tool]
        self.server.add("a", "1.0.1")  # in the registry, and not in the lockfile

    def run(self, work, *, prefetch=False, packages=None, **options):
        """Runs `work(mirror, port)` beside a mirror; its answer."""

        async def whole():
            listener = socket.create_server(("127.0.0.1", 0))
            port = listener.getsockname()[1]
            settings = {"limit_bytes": 2**30, "connections_count": 16, **options}
            npm = NpmSettings(registry=Address.parse(self.server.url))
            async with Registry(npm, self.store) as source:
                lockfile = self.packages if packages is None else packages
                mirror = Mirror(tarball_paths(lockfile), source.fetch, port=port, **settings)
                async with mirror:
                    if prefetch:
                        mirror.prefetch()
                    await mirror.start(listener)
                    async with asyncio.timeout(PATIENCE_S):
                        return await work(mirror, port)

        return asyncio.run(whole())

    def say(self, data, **options):
        """(what was answered to these bytes, the denials); the port stands for PORT."""

        async def work(mirror, port):
            return await say(port, data), mirror.denials

        return self.run(work, **options)


@pytest.fixture
def site(tmp_path):
    with RegistryServer() as server:
        yield Site(server, tmp_path)


async def say(port, data):
    """What comes back until the mirror hangs up; it is told that no more will be asked."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data.replace(b"PORT", str(port).encode()))
        writer.write_eof()
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.transport.abort()


def request(path=A, method="GET", **headers):
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1:PORT"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode()


def answers(data, *, of_head=False):
    """[(status, body)] of all answers in these bytes; they must be nothing but whole answers."""
    found = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode("ascii").split("\r\n")
        headers = dict(line.split(": ") for line in lines[1:])
        size_bytes = 0 if of_head else int(headers["Content-Length"])
        assert len(data) >= size_bytes
        found.append((int(lines[0].split(" ")[1]), data[:size_bytes]))
        data = data[size_bytes:]
    return found


def statuses(data):
    return [code for code, _ in answers(data)]


# What is allowed


def test_the_lockfiles_tarballs_are_served_in_every_usual_spelling(site):
    tarball = "/@acme{}tool/-/tool-2.0.0.tgz"
    data, denials = site.say(b"".join(request(tarball.format(s)) for s in ("/", "%2f", "%2F")))
    assert answers(data) == [(200, site.server.content(site.tool))] * 3
    assert denials == []
    assert site.server.paths() == ["/@acme/tool/-/tool-2.0.0.tgz"]  # fetched once


def test_a_head_tells_the_size_and_sends_nothing(site):
    data, _ = site.say(request(method="HEAD"))
    assert answers(data, of_head=True) == [(200, b"")]
    assert f"Content-Length: {len(site.server.content(site.a))}\r\n".encode() in data
    assert site.server.seen[0].method == "GET"


def test_a_refused_head_has_no_body_that_would_pass_for_the_next_answer(site):
    data, _ = site.say(request("/a", "HEAD") + request())
    head, _, rest = data.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 404 ")
    assert answers(rest) == [(200, site.server.content(site.a))]


def test_a_range_is_not_heeded_and_the_whole_is_sent(site):
    data, _ = site.say(request(Range="bytes=0-1"))
    assert answers(data) == [(200, site.server.content(site.a))]


@pytest.mark.case("net-15-registry-as-exfil")
def test_no_byte_of_the_box_reaches_the_registry(site):
    headers = {"Authorization": SECRET, "Cookie": SECRET, "X_Data": SECRET, "User_Agent": SECRET}
    data, _ = site.say(request(**headers) + request(f"/{SECRET}") + request(f"{A}?{SECRET}"))
    assert statuses(data) == [200, 404, 404]
    (seen,) = site.server.seen
    assert SECRET not in str(seen)
    assert set(seen.headers) == {"host", "accept", "accept-encoding", "user-agent"}


# What is not


@pytest.mark.parametrize(
    "path",
    [
        "/", "/a", "/a/1.0.0", "/@acme/tool", "/@acme%2ftool", "/-/ping", "/-/whoami", "/-/all",
        "/-/v1/search?text=x", "/-/npm/v1/security/advisories/bulk", "/a/-/a-1.0.1.tgz",
        "/A/-/a-1.0.0.tgz", "//a/-/a-1.0.0.tgz", "/a/-/a-1.0.0.tgz/", "/a/-/a-1.0.0.tgz?x=y",
        "/a/-/a-1.0.0.tgz#x", "/./a/-/a-1.0.0.tgz", "/b/../a/-/a-1.0.0.tgz", "/a/-/a-1%2e0.0.tgz",
        "/a%2f-%2fa-1.0.0.tgz", "/a/-/a-1.0.0.tgz;x", "/a/-/a-1.0.0.tgz%00", "/%61/-/a-1.0.0.tgz",
        "/%40acme/tool/-/tool-2.0.0.tgz", "/../../etc/passwd", "/..%2f..%2fetc/passwd", "/\\a",
    ],
)  # fmt: skip
@pytest.mark.case("net-15-registry-as-exfil")
def test_any_other_path_is_refused_and_recorded(site, path):
    data, denials = site.say(request(path) + request())
    assert answers(data)[0][0] == 404
    assert answers(data)[1] == (200, site.server.content(site.a))
    assert denials == [(f"GET {path}".replace("\\", "\\\\"), "nothing that the lockfile names")]
    assert site.server.paths() == [A]


@pytest.mark.parametrize(
    "method", ["PUT", "POST", "DELETE", "PATCH", "OPTIONS", "TRACE", "PROPFIND", "get", "GETX"]
)
@pytest.mark.case("net-15-registry-as-exfil")
def test_nothing_is_written_through_the_mirror(site, method):
    body = json.dumps({"data": SECRET}).encode()
    for path in ("/evil-pkg", A, "/-/npm/v1/security/advisories/bulk"):
        bad = request(path, method, Content_Length=len(body)) + body
        data, denials = site.say(bad + request())
        assert statuses(data) == [405]
        assert denials == [(f"{method} {path} HTTP/1.1", "only GET and HEAD are allowed")]
    assert site.server.seen == []


@pytest.mark.case("net-15-registry-as-exfil")
def test_no_connection_is_upgraded(site):
    for headers in (
        {"Upgrade": "websocket", "Connection": "Upgrade"},
        {"Upgrade": "h2c", "Connection": "Upgrade, HTTP2-Settings", "HTTP2_Settings": "AAMA"},
        {"Expect": "100-continue"},
    ):
        data, denials = site.say(request(**headers) + request())
        assert statuses(data) == [400]
        assert len(denials) == 1
    assert site.server.seen == []


@pytest.mark.case("net-09-host-vs-connect")
def test_one_name_is_not_checked_and_another_meant(site):
    upstream = site.server.origin.removeprefix("http://")
    raw = (
        f"GET http://{upstream}/ HTTP/1.1\r\nHost: other.test\r\nConnection: keep-alive\r\n\r\n"
        f"GET http://other.test/ HTTP/1.1\r\nHost: {upstream}\r\n\r\n"
        f"GET /x HTTP/1.1\r\nHost: other.test\r\nHost: {upstream}\r\n\r\n"
    ).encode()
    pieces = [piece + b"\r\n\r\n" for piece in raw.split(b"\r\n\r\n")[:3]]
    for bad in (raw, *pieces):
        data, denials = site.say(request() + bad + request())
        # The first is good and the second is the end of it.
        assert [statuses(data)[0], len(statuses(data)), len(denials)] == [200, 2, 1]
        assert statuses(data)[1] in (400, 403)
    assert site.server.paths() == [A]
    assert "other.test" not in str(site.server.seen)


@pytest.mark.parametrize(
    "host",
    [
        "other.test", "", "127.0.0.1", "127.0.0.1:1", "localhost", "localhost.:PORT", "[::1]:PORT",
        "127.1:PORT", "0x7f000001:PORT", "2130706433:PORT", "127.0.0.1:PORT.other.test",
        "127.0.0.1:PORT@other.test", "me@127.0.0.1:PORT", "127.0.0.1:0PORT", "127.0.0.1 :PORT",
        "127.0.0.1:PORT, other.test",
    ],
)  # fmt: skip
@pytest.mark.case("net-09-host-vs-connect")
def test_only_the_mirrors_own_name_is_answered_to(site, host):
    bad = request().replace(b"127.0.0.1:PORT", host.encode())
    data, denials = site.say(bad)
    assert statuses(data) == [403]
    assert denials[0][1].startswith("its host is not 127.0.0.1:")
    good, _ = site.say(request().replace(b"127.0.0.1:PORT", b"LocalHost:PORT"))
    assert statuses(good) == [200]


def test_a_request_that_names_no_host_or_two_is_refused(site):
    none = f"GET {A} HTTP/1.1\r\n\r\n".encode()
    assert statuses(site.say(none)[0]) == [403]
    assert statuses(site.say(request(host="127.0.0.1:PORT"))[0]) == [400]


@pytest.mark.case("net-07-connect-ip-forms")
def test_no_spelling_of_an_address_is_connected_to(site):
    hits = []
    with socket.create_server(("127.0.0.1", 0)) as canary:
        port = canary.getsockname()[1]
        targets = [
            f"{host}:{port}"
            for host in (
                "127.0.0.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.1", "[::1]",
                "[::ffff:127.0.0.1]", "0.0.0.0", "localhost.", "localhost",
            )
        ] + ["169.254.169.254:80", "100.100.100.200:80", "127.0.0.1:PORT"]  # fmt: skip

        def count():
            while True:
                connection, _ = canary.accept()
                hits.append(connection.recv(4))
                connection.close()
                if hits[-1] == b"stop":
                    return

        thread = threading.Thread(target=count)
        thread.start()
        for target in targets:
            line = f"CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n".encode()
            data, denials = site.say(line)
            assert statuses(data)[0] in (400, 403)
            assert len(denials) == 1
            absolute = request(f"http://{target}/")
            assert statuses(site.say(absolute)[0])[0] in (400, 403)
        with socket.create_connection(("127.0.0.1", port)) as control:
            control.sendall(b"stop")
        thread.join()
    assert hits == [b"stop"]
    assert site.server.seen == []


SMUGGLED = b"GET /@acme/tool/-/tool-2.0.0.tgz HTTP/1.1\r\nHost: 127.0.0.1:PORT\r\n\r\n"


@pytest.mark.parametrize(
    "bad",
    [
        request(Content_Length=len(SMUGGLED)),
        request(Content_Length="0, 5"),
        request(Content_Length="00"),
        request(Content_Length="+0"),
        request(Content_Length="-1"),
        request(Content_Length="0x0"),
        request(Content_Length="0", content_length="5"),
        request(Content_Length="0", content_length="0"),
        request(Transfer_Encoding="chunked") + b"0\r\n\r\n",
        request(Transfer_Encoding="xchunked"),
        request(Transfer_Encoding="identity"),
        request(Transfer_Encoding="chunked", Content_Length="0") + b"5\r\nxxxxx\r\n0\r\n\r\n",
        request(Transfer_Encoding="chunked") + b"ffffffffffffffffff\r\n",
        request().replace(b"\r\n", b"\n"),
        request().replace(b"\r\nHost", b"\nHost"),
        request(X="y").replace(b"X: y", b"X: y\nTransfer-Encoding: chunked"),
        request(X="y").replace(b"X: y", b"X: y\rTransfer-Encoding: chunked"),
        request(X="y").replace(b"X: y", b"X: y\0"),
        request(X="y").replace(b"X: y", b"X: y\r\n folded"),
        request(X="y").replace(b"X: y", b"X: \xe9"),
        request(X="y").replace(b"X: y", b"X : y"),
        request(X="y").replace(b"X: y", b" X: y"),
        request(X="y").replace(b"X: y", b": y"),
        request(X="y").replace(b"X: y", b"X"),
        request(X="y").replace(b"X: y", b"X\0: y"),
        request().replace(b"HTTP/1.1", b"HTTP/1.0"),
        request().replace(b"HTTP/1.1", b"HTTP/2"),
        request().replace(b"HTTP/1.1", b"http/1.1"),
        request().replace(b"HTTP/1.1", b"HTTP/1.1 "),
        request().replace(b" HTTP/1.1", b""),
        request().replace(b"GET ", b"GET  "),
        request().replace(b"GET ", b"GET\t"),
        request().replace(b"GET ", b" GET "),
        request().replace(b"GET ", b""),
        request("/a\x0b"),
        request("a"),
        request("*"),
        request("/\x7f"),
        request().replace(A.encode(), b"/\xff"),
        b"\r\n" + request(),
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        b"\0" * 100 + b"\r\n\r\n",
        request(Connection="keep-alive", connection="close"),
        request(**{f"H{number}": "x" for number in range(100)}),
    ],
)
@pytest.mark.case("net-09-host-vs-connect")
def test_a_malformed_request_is_the_last_on_its_connection(site, bad):
    data, denials = site.say(bad + SMUGGLED)
    assert statuses(data) == [400]
    assert b"Connection: close\r\n" in data
    assert len(denials) == 1
    assert site.server.seen == []
    assert statuses(site.say(SMUGGLED)[0]) == [200]  # the control


def test_a_line_without_a_cr_is_refused_before_more_is_waited_for(site):
    async def work(mirror, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"GET {A} HTTP/1.1\nHost: 127.0.0.1:{port}\n\n".encode())
        try:
            return await reader.readuntil(b"\r\n\r\n")
        finally:
            writer.transport.abort()

    assert site.run(work).startswith(b"HTTP/1.1 400 ")


def test_each_request_on_a_connection_is_judged_anew(site):
    good, bad = request(), request("/a")
    data, denials = site.say(good + bad + good + bad + good)
    assert statuses(data) == [200, 404, 200, 404, 200]
    assert len(denials) == 2


def test_a_request_that_wants_to_be_the_last_is(site):
    data, _ = site.say(request(Connection="close") + request())
    assert statuses(data) == [200]
    assert b"Connection: close\r\n" in data


def test_a_head_without_an_end_is_not_collected(site):
    for bad in (
        request(X="y" * HEAD_BYTES_LIMIT),
        b"GET /" + b"a" * 10 * HEAD_BYTES_LIMIT,
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * HEAD_BYTES_LIMIT,
    ):
        data, denials = site.say(bad)
        assert data == b"" or statuses(data) == [431]
        assert denials[0][1] == f"its head is over {HEAD_BYTES_LIMIT} bytes"
        assert len(denials[0][0]) < 1000
    assert statuses(site.say(request(X="y" * (HEAD_BYTES_LIMIT - 200)))[0]) == [200]


def test_a_head_that_breaks_off_is_recorded(site):
    data, denials = site.say(request()[:-2])
    assert statuses(data) == [400]
    assert denials[0][1] == "it ends within its head"


# What a box can do to the host


def test_a_slow_or_silent_box_is_hung_up_on(site, monkeypatch):
    monkeypatch.setattr(mirror_module, "IDLE_TIMEOUT_S", 0.05)

    async def work(mirror, port):
        for data in (b"", request()[:5], request()[:-2], request() + b"GET"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data.replace(b"PORT", str(port).encode()))
            got = await reader.read()
            writer.transport.abort()
        return got, mirror._conversations

    got, left = site.run(work)
    assert statuses(got) == [200]
    assert left == set()


def test_a_box_that_does_not_read_is_hung_up_on_and_holds_up_nobody(site, monkeypatch):
    monkeypatch.setattr(mirror_module, "IDLE_TIMEOUT_S", 0.2)

    async def work(mirror, port):
        channel = socket.create_connection(("127.0.0.1", port))
        channel.sendall(request("/big/-/big-1.0.0.tgz").replace(b"PORT", str(port).encode()) * 9)
        while not mirror.served_bytes:
            await asyncio.sleep(0.001)
        other = await say(port, request())
        while mirror._conversations:
            await asyncio.sleep(0.001)
        channel.close()
        return other

    assert statuses(site.run(work, packages=[site.a, site.big])) == [200]


def test_a_box_that_reads_gets_a_large_tarball_whole(site):
    data, _ = site.say(request("/big/-/big-1.0.0.tgz"), packages=[site.big])
    assert answers(data) == [(200, site.server.content(site.big))]


def test_no_more_connections_than_allowed_are_answered(site):
    async def work(mirror, port):
        held_open = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3)]
        for reader, writer in held_open:
            writer.write(request().replace(b"PORT", str(port).encode()))
            await reader.readuntil(b"\r\n\r\n")
        refused = await say(port, b"")
        held_open[0][1].transport.abort()
        while len(mirror._conversations) == 3:
            await asyncio.sleep(0.001)
        accepted = await say(port, request())
        for _, writer in held_open:
            writer.transport.abort()
        return refused, accepted, mirror.denials

    refused, accepted, denials = site.run(work, connections_count=3)
    assert statuses(refused) == [503]
    assert statuses(accepted) == [200]
    assert denials == [("a connection", "more than 3 at a time")]


def test_no_more_bytes_than_allowed_are_sent(site):
    size_bytes = len(site.server.content(site.a))
    limit_bytes = 2 * (size_bytes + 200)

    async def work(mirror, port):
        data = await say(port, request() * 20)
        return data, mirror.denials, mirror.is_exhausted, mirror.served_bytes

    data, denials, is_exhausted, served_bytes = site.run(work, limit_bytes=limit_bytes)
    assert statuses(data)[:2] == [200, 200]
    assert statuses(data)[2:] in ([403], [])
    assert len(data) == served_bytes <= limit_bytes
    assert is_exhausted
    assert denials == [(f"GET {A}", f"over the limit of {limit_bytes} bytes of egress")]


def test_refusals_count_against_the_bytes_too(site):
    async def work(mirror, port):
        data = await say(port, request("/x") * 1000)
        return data, mirror.served_bytes

    data, served_bytes = site.run(work, limit_bytes=10_000)
    assert len(data) == served_bytes <= 10_000


def test_the_record_of_denials_is_short_and_harmless_however_many_there_are(site):
    told = []

    async def work(mirror, port):
        nasty = "/\x1b[2J" + "x" * 5000
        await say(port, request("/x" + "y" * 5000) * (DENIALS_LIMIT_COUNT + 50))
        first = await say(port, request(nasty))
        return mirror.denials, mirror.denied_count, first

    denials, count, nasty = site.run(work, on_denied=lambda what, why: told.append((what, why)))
    assert statuses(nasty) == [400]
    assert len(denials) == DENIALS_LIMIT_COUNT
    assert count == DENIALS_LIMIT_COUNT + 51
    assert told == denials
    assert all(len(what) < 500 and what.isprintable() for what, _ in denials)
    _, denials = site.say(request("/\x1b[2J" + "x" * 5000))
    assert denials[0][0].startswith("GET /\\x1b[2Jxxx") and len(denials[0][0]) < 500


# When the registry fails


@pytest.fixture
def _short_delays(monkeypatch):
    monkeypatch.setattr(registry_module, "RETRY_DELAYS_S", (0.001, 0.002))


def failing(site, *script):
    """(answers to a request, its reason) when the registry does as the script says."""
    site.server.script(site.a, *script)

    async def work(mirror, port):
        return await say(port, request() * 2 + request("/@acme/tool/-/tool-2.0.0.tgz")), mirror

    data, mirror = site.run(work)
    return data, mirror


@pytest.mark.usefixtures("_short_delays")
@pytest.mark.parametrize(
    ("answer", "code"),
    [
        (status(404), ReasonCode.PACKAGE_UNAVAILABLE),
        (status(403), ReasonCode.PACKAGE_UNAVAILABLE),
        (status(500), ReasonCode.REGISTRY_FAILED),
        (hang_up, ReasonCode.REGISTRY_FAILED),
        (truncated(make_tarball("a", "1.0.0")[:50], 1000), ReasonCode.REGISTRY_FAILED),
        (status(200, SECRET.encode()), ReasonCode.INTEGRITY_MISMATCH),
    ],
)
def test_what_the_registry_fails_to_give_is_told_to_the_host_and_not_to_the_box(site, answer, code):
    data, mirror = failing(site, *[answer] * 3)
    assert answers(data)[:2] == [(502, b"the registry did not give it\n")] * 2
    assert answers(data)[2] == (200, site.server.content(site.tool))
    assert mirror.failure.code is code
    assert "a@1.0.0" in mirror.failure.message
    for detail in (SECRET, site.server.origin.removeprefix("http://"), "127.0.0.1"):
        assert detail.encode() not in b"".join(body for code, body in answers(data) if code != 200)
    assert mirror.denials == []


def test_what_was_fetched_before_it_was_asked_for_fails_only_if_it_is_asked_for(site):
    site.server.script(site.a, *[status(404)] * 3)
    site.packages.append(site.server.add("unwanted", "1.0.0"))
    site.packages[-1] = type(site.a)("unwanted", "1.0.0", site.packages[-1].integrity, wanted=False)
    progress = []

    async def work(mirror, port):
        await asyncio.wait(list(mirror._fetches.values()))
        before = (mirror.failure, sorted(site.server.paths()), mirror.progress)
        data = await say(port, request("/unwanted/-/unwanted-1.0.0.tgz"))
        failed = await say(port, request())
        return before, statuses(data), statuses(failed), mirror

    before, good, failed, mirror = site.run(work, prefetch=True, on_progress=progress.append)
    tool_bytes = len(site.server.content(site.tool))
    assert before[0] is None
    assert before[1] == ["/@acme/tool/-/tool-2.0.0.tgz", "/a", A]
    assert (before[2].done_count, before[2].total_count) == (1, 2)
    assert before[2].done_bytes == tool_bytes
    assert (good, failed) == ([200], [502])
    assert mirror.failure.code is ReasonCode.PACKAGE_UNAVAILABLE
    assert [each.done_count for each in progress] == [1, 2]


def test_a_fault_of_our_own_does_not_vanish_and_stops_nothing(site):
    async def work(_, port):
        listener = socket.create_server(("127.0.0.1", 0))
        own_port = listener.getsockname()[1]

        async def fetch(package):
            raise ZeroDivisionError

        async with Mirror(
            tarball_paths([site.a]), fetch, port=own_port, limit_bytes=10**6, connections_count=4
        ) as mirror:
            await mirror.start(listener)
            return [await say(own_port, request()) for _ in range(2)], mirror.failure

    data, failure = site.run(work)
    assert data == [b"", b""]
    assert failure.code is ReasonCode.HOST_FAILED


def test_closing_leaves_no_task_no_connection_and_no_listener(site):
    release = threading.Event()
    site.server.script(site.a, held(release, hang_up))

    async def work(mirror, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        idle_reader, idle_writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(request().replace(b"PORT", str(port).encode()))
        while not site.server.seen:
            await asyncio.sleep(0.001)
        before = asyncio.all_tasks()
        await mirror.close()
        gone = [await reader.read(), await idle_reader.read()]
        release.set()
        writer.transport.abort()
        idle_writer.transport.abort()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", port)
        return gone, asyncio.all_tasks() - {asyncio.current_task()}, before

    gone, left, before = site.run(work)
    assert gone == [b"", b""]
    assert left == set()
    assert len(before) > 2


# Any bytes at all

PIECES = [
    b"GET ", b"HEAD ", b"POST ", A.encode(), b"/", b" HTTP/1.1\r\n", b"Host: 127.0.0.1:PORT\r\n",
    b"\r\n", b"\n", b"\0", b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b": ",
    request(), request("/a"), request(method="HEAD"), b" ", b"\r", b"\xff",
]  # fmt: skip
streams = st.lists(st.sampled_from(PIECES) | st.binary(max_size=20), max_size=12).map(b"".join)


def test_whatever_bytes_a_box_sends_the_mirror_answers_with_the_lockfiles_bytes_or_a_refusal(site):
    async def work(mirror, port):
        loop = asyncio.get_running_loop()
        contents = {site.server.content(site.a)}

        def one(data):
            got = asyncio.run_coroutine_threadsafe(say(port, data), loop).result(PATIENCE_S)
            if b"HEAD " not in data:
                for code, body in answers(got):
                    assert (code == 200) == (body in contents)

        fuzz = settings(max_examples=150, database=None, deadline=None)(given(streams)(one))
        await asyncio.to_thread(fuzz)
        return await say(port, request()), mirror.failure

    data, failure = site.run(work)
    assert statuses(data) == [200]
    assert failure is None
    assert set(site.server.paths()) == {A}
