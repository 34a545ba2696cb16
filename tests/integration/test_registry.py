"""Fetching packages from a real registry on loopback, over HTTP and TLS, in good times and bad."""

import asyncio
import base64
import json
import socket
import threading
import time
from dataclasses import replace

import pytest

from cloche.egress import connections, registry
from cloche.egress.registry import PackageError, Registry, find_registry
from cloche.errors import UnavailableError
from cloche.linux.host import CommandResult
from cloche.model.job import ReasonCode
from cloche.model.package import Package
from cloche.settings import Address, NpmSettings, read_settings
from cloche.store.packages import PackageStore
from registry_server import (
    RegistryServer,
    hang_up,
    held,
    integrity_of,
    make_authority,
    make_tarball,
    redirect,
    status,
    truncated,
)


@pytest.fixture(autouse=True)
def _short_delays(monkeypatch):
    monkeypatch.setattr(registry, "RETRY_DELAYS_S", (0.001, 0.002))


@pytest.fixture
def server():
    with RegistryServer() as server:
        yield server


@pytest.fixture
def store(tmp_path):
    return PackageStore(tmp_path / "packages")


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return make_authority(tmp_path_factory.mktemp("authority"))


def settings_for(server, **fields):
    return NpmSettings(registry=Address.parse(server.url), **fields)


def fetch(npm, store, *packages, **options):
    """Fetches packages one after another; the last one's content."""

    async def work():
        async with Registry(npm, store, **options) as source:
            for package in packages:
                path = await source.fetch(package)
            return path.read_bytes()

    return asyncio.run(work())


def failure(npm, store, package, **options):
    with pytest.raises(PackageError) as caught:
        fetch(npm, store, package, **options)
    assert str(package) in caught.value.message
    return caught.value


def test_a_package_comes_whole_and_is_not_asked_for_twice(server, store):
    plain, scoped = server.add("plain", "1.0.0"), server.add("@acme/tool", "2.0.0-rc.1")
    npm = settings_for(server)
    assert fetch(npm, store, plain, scoped) == make_tarball("@acme/tool", "2.0.0-rc.1")
    assert server.paths() == ["/plain/-/plain-1.0.0.tgz", "/@acme/tool/-/tool-2.0.0-rc.1.tgz"]
    assert fetch(npm, store, plain) == make_tarball("plain", "1.0.0")
    assert len(server.seen) == 2


def test_what_is_damaged_in_the_store_is_fetched_again(server, store):
    package = server.add("a", "1.0.0")
    path = asyncio.run(_path_of(settings_for(server), store, package))
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    assert fetch(settings_for(server), store, package) == server.content(package)
    assert len(server.seen) == 2


async def _path_of(npm, store, package):
    async with Registry(npm, store) as source:
        return await source.fetch(package)


def test_the_body_is_taken_as_it_is_whatever_it_is_said_to_be(server, store):
    package = server.add("a", "1.0.0")
    labelled = status(200, server.content(package), Content_Encoding="gzip")
    server.script(package, labelled)
    assert fetch(settings_for(server), store, package) == server.content(package)
    assert server.seen[0].headers["accept-encoding"] == "identity"


def test_connections_are_kept_and_a_dead_one_is_not_held_against_the_registry(server, store):
    first, second = server.add("a", "1.0.0"), server.add("b", "1.0.0")

    async def work():
        async with Registry(settings_for(server), store) as source:
            await source.fetch(first)
            (line,) = source._connections._idle
            await source.fetch(second)
            assert source._connections._idle == [line]
            server.drop_connections()
            return (await source.fetch(server.add("c", "1.0.0"))).read_bytes()

    assert asyncio.run(work()) == make_tarball("c", "1.0.0")
    assert len(server.seen) == 3


def test_many_ask_for_one_package_and_one_download_serves_them(server, store):
    package = server.add("a", "1.0.0")
    asked = threading.Event()
    server.script(package, held(asked, status(200, server.content(package))))

    async def work():
        async with Registry(settings_for(server), store) as source:
            waiting = [
                asyncio.create_task(source.fetch(replace(package, wanted=bool(number % 2))))
                for number in range(20)
            ]
            await asyncio.sleep(0)
            waiting[0].cancel()  # who no longer waits takes nothing from the others
            await asyncio.sleep(0)
            asked.set()
            return await asyncio.gather(*waiting, return_exceptions=True)

    cancelled, *paths = asyncio.run(work())
    assert isinstance(cancelled, asyncio.CancelledError)
    assert len(set(paths)) == 1
    assert len(server.seen) == 1


def test_many_packages_come_at_once_over_as_many_connections_as_allowed(server, store):
    packages = [server.add(f"p{number}", "1.0.0") for number in range(60)]
    all_there = threading.Barrier(registry.CONNECTIONS_COUNT)

    def meet(handler):
        all_there.wait(20)
        handler.answer(200, handler.server.files[handler.path])

    for package in packages[: registry.CONNECTIONS_COUNT]:
        server.script(package, meet)

    async def work():
        async with Registry(settings_for(server), store) as source:
            return await asyncio.gather(*map(source.fetch, packages))

    assert len(set(asyncio.run(work()))) == 60
    assert server.connections_count <= registry.CONNECTIONS_COUNT


TROUBLES = {
    "busy": status(503),
    "too many": status(429),
    "dead": hang_up,
    "cut": truncated(b"half", 1000),
    "empty": truncated(b"", 1000),
    "nonsense": lambda handler: handler.wfile.write(b"\0\0\0 no http\r\n\r\n"),
}


@pytest.mark.parametrize("name", TROUBLES)
def test_a_registry_in_trouble_is_asked_three_times(server, store, name):
    package = server.add("a", "1.0.0")
    server.script(package, *[TROUBLES[name]] * 2)
    assert fetch(settings_for(server), store, package) == server.content(package)
    other = server.add("b", "1.0.0")
    server.script(other, *[TROUBLES[name]] * 3)
    error = failure(settings_for(server), store, other)
    assert error.code is ReasonCode.REGISTRY_FAILED
    assert error.retry_safe
    assert server.origin in error.message
    assert server.paths().count("/b/-/b-1.0.0.tgz") == 3


def ask(server, store, **options):
    """What the registry says of `a`, and of its keys."""

    async def work():
        async with Registry(settings_for(server), store) as source:
            document = await source.fetch_metadata("a")
            return document, await source.ask("a", "keys", 100, **options)

    return asyncio.run(work())


@pytest.mark.parametrize("name", TROUBLES)
def test_metadata_and_keys_are_asked_for_three_times_too(server, store, name):
    server.add("a", "1.0.0")
    server.serve("/keys", b"{}")
    for path in ("/a", "/keys"):
        server.script(path, *[TROUBLES[name]] * 2)
    document, keys = ask(server, store, patiently=True)
    assert json.loads(document)["name"] == "a"
    assert keys == b"{}"
    assert server.paths() == ["/a"] * 3 + ["/keys"] * 3
    server.script("/a", *[TROUBLES[name]] * 3)
    with pytest.raises(PackageError) as caught:
        ask(server, store)
    assert (caught.value.code, caught.value.retry_safe) == (ReasonCode.REGISTRY_FAILED, True)
    assert server.paths().count("/a") == 6


def test_what_need_not_be_had_is_asked_for_once(server, store):
    server.add("a", "1.0.0")
    server.script("/keys", status(503))
    with pytest.raises(PackageError):
        ask(server, store)
    assert server.paths() == ["/a", "/keys"]


@pytest.mark.parametrize("code", [400, 401, 404])
def test_metadata_that_are_not_given_are_asked_for_once(server, store, code):
    server.script("/a", status(code))
    with pytest.raises(PackageError) as caught:
        ask(server, store)
    assert caught.value.code is ReasonCode.PACKAGE_UNAVAILABLE
    assert str(code) in caught.value.message
    assert server.paths() == ["/a"]


def test_a_registry_without_keys_is_asked_for_them_once(server, store):
    server.add("a", "1.0.0")
    assert ask(server, store, patiently=True)[1] is None
    assert server.paths() == ["/a", "/keys"]


def test_a_registry_that_does_not_answer_is_given_up(server, store, monkeypatch):
    monkeypatch.setattr(connections, "IDLE_TIMEOUT_S", 0.05)
    package = server.add("a", "1.0.0")
    done = threading.Event()
    server.script(package, *[held(done, hang_up)] * 3)
    error = failure(settings_for(server), store, package)
    done.set()
    assert error.code is ReasonCode.REGISTRY_FAILED
    assert "does not answer" in error.message


def test_a_registry_that_is_not_there_is_told(store):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    npm = NpmSettings(registry=Address.parse(f"http://me:hunter2@127.0.0.1:{port}/"))
    error = failure(npm, store, Package("a", "1.0.0", integrity_of(b"")))
    assert error.code is ReasonCode.REGISTRY_FAILED
    assert f"http://127.0.0.1:{port}: Connection refused" in error.message
    assert "hunter2" not in error.message


@pytest.mark.parametrize(
    ("code", "attempts_count"), [(401, 1), (403, 1), (404, 1), (400, 1), (410, 1)]
)
def test_a_registry_that_says_no_is_not_asked_again(server, store, code, attempts_count):
    package = Package("a", "1.0.0", integrity_of(b""))
    server.script(package, *[status(code)] * 3)
    error = failure(settings_for(server), store, package)
    assert error.code is ReasonCode.PACKAGE_UNAVAILABLE
    assert not error.retry_safe
    assert str(code) in error.message
    assert server.paths().count("/a/-/a-1.0.0.tgz") == attempts_count


def test_wrong_bytes_are_asked_for_once_more_and_never_kept(server, store, tmp_path):
    package = server.add("a", "1.0.0")
    wrong = make_tarball("a", "1.0.0", {"index.js": "steal()"})
    server.script(package, status(200, wrong))
    assert fetch(settings_for(server), store, package) == server.content(package)
    other = server.add("b", "1.0.0")
    server.script(other, *[status(200, wrong)] * 2)
    error = failure(settings_for(server), store, other)
    assert error.code is ReasonCode.INTEGRITY_MISMATCH
    assert not error.retry_safe
    kept = [path for path in (tmp_path / "packages").rglob("*") if path.is_file()]
    assert [path.read_bytes() for path in kept] == [server.content(package)]


def test_another_packages_bytes_do_not_pass_for_a_package(server, store):
    good, other = server.add("good", "1.0.0"), server.add("other", "1.0.0")
    server.script(good, *[status(200, server.content(other))] * 2)
    assert fetch(settings_for(server), store, other)
    assert failure(settings_for(server), store, good).code is ReasonCode.INTEGRITY_MISMATCH


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_tarball_over_the_limit_is_refused(server, store, monkeypatch, is_announced):
    monkeypatch.setattr(registry, "TARBALL_BYTES_LIMIT", 100)
    package = server.add("a", "1.0.0", b"x" * 101)
    if not is_announced:
        server.script(package, truncated(b"x" * 101, 10**12))
    error = failure(settings_for(server), store, package)
    assert error.code is ReasonCode.PACKAGE_UNAVAILABLE
    assert "over the limit" in error.message
    assert len(server.seen) == 1
    assert fetch(settings_for(server), store, server.add("b", "1.0.0", b"x" * 100))


# Where the tarball is


def test_a_tarball_at_an_unusual_path_is_found_by_its_metadata(server, store):
    data = make_tarball("@acme/tool", "1.0.0")
    package = server.add("@acme/tool", "1.0.0", data, path="/download/acme/tool/0123?x=y")
    assert fetch(settings_for(server), store, package) == data
    assert server.paths() == [
        "/@acme/tool/-/tool-1.0.0.tgz",
        "/@acme%2ftool",
        "/download/acme/tool/0123?x=y",
    ]


def test_a_tarball_on_another_host_is_looked_for_on_the_registrys_own(server, store):
    data = make_tarball("a", "1.0.0")
    package = Package("a", "1.0.0", integrity_of(data))
    with RegistryServer() as other:
        other.serve("/files/a.tgz", data)
        tarball = f"{other.origin}/files/a.tgz"
        server.serve(
            "/a", b'{"versions": {"1.0.0": {"dist": {"tarball": "%s"}}}}' % tarball.encode()
        )
        error = failure(settings_for(server), store, package)
        assert error.code is ReasonCode.PACKAGE_UNAVAILABLE
        server.serve("/files/a.tgz", data)
        assert fetch(settings_for(server), store, package) == data
        assert other.seen == []


@pytest.mark.parametrize(
    "metadata",
    [
        b"no json",
        b"[" * 100_000,
        b"[]",
        b"null",
        b'{"versions": 1}',
        b'{"versions": {"2.0.0": {}}}',
        b'{"versions": {"1.0.0": {"dist": {"tarball": 7}}}}',
        b'{"versions": {"1.0.0": {"dist": {"tarball": "file:///etc/passwd"}}}}',
        b'{"versions": {"1.0.0": {"dist": {"tarball": "http://[/"}}}}',
    ],
)
def test_metadata_that_make_no_sense_are_no_way_out(server, store, metadata):
    server.serve("/a", metadata)
    error = failure(settings_for(server), store, Package("a", "1.0.0", integrity_of(b"")))
    assert error.code is ReasonCode.PACKAGE_UNAVAILABLE
    assert server.paths() == ["/a/-/a-1.0.0.tgz", "/a"]


def test_metadata_over_the_limit_are_refused(server, store, monkeypatch):
    monkeypatch.setattr(registry, "METADATA_BYTES_LIMIT", 100)
    server.serve("/a", b'"' + b"x" * 100 + b'"')
    error = failure(settings_for(server), store, Package("a", "1.0.0", integrity_of(b"")))
    assert "over the limit" in error.message


def test_a_registry_may_lie_below_a_path(store):
    with RegistryServer(base="/repository/npm/") as server:
        package = server.add("@acme/tool", "1.0.0")
        assert fetch(settings_for(server), store, package) == server.content(package)
        assert server.paths() == ["/repository/npm/@acme/tool/-/tool-1.0.0.tgz"]


def test_a_scope_is_fetched_from_its_own_registry(server, store):
    with RegistryServer() as acme:
        package = acme.add("@acme/tool", "1.0.0")
        npm = settings_for(server, scopes={"@acme": Address.parse(acme.url)})
        assert fetch(npm, store, package) == acme.content(package)
        # The same name from elsewhere is another package.
        error = failure(settings_for(server), store, package)
        assert error.code is ReasonCode.PACKAGE_UNAVAILABLE


# Credentials and redirects


def credentials_for(server, path="/"):
    return {f"//127.0.0.1:{server.port}{path}": "Bearer hunter2"}


def test_a_token_goes_to_its_registry_and_to_no_other(server, store):
    with RegistryServer() as other:
        mine, theirs = server.add("a", "1.0.0"), other.add("@other/b", "1.0.0")
        npm = settings_for(
            server,
            credentials=credentials_for(server),
            scopes={"@other": Address.parse(other.url)},
        )
        fetch(npm, store, mine, theirs)
        assert server.seen[0].headers["authorization"] == "Bearer hunter2"
        assert "authorization" not in other.seen[0].headers


def test_a_token_does_not_follow_a_redirect_to_another_origin(server, store):
    with RegistryServer() as other:
        package = server.add("a", "1.0.0")
        other.serve("/a.tgz", server.content(package))
        server.script(package, redirect(f"{other.origin}/a.tgz"))
        # Even where the other has credentials of its own: who redirects could use them.
        both = credentials_for(server) | credentials_for(other)
        fetch(settings_for(server, credentials=both), store, package)
        assert server.seen[0].headers["authorization"] == "Bearer hunter2"
        assert [each.path for each in other.seen] == ["/a.tgz"]
        assert "authorization" not in other.seen[0].headers
        assert "hunter2" not in str(other.seen)


def test_a_token_follows_a_redirect_on_its_own_origin_where_it_is_for_that_path_too(server, store):
    packages = [server.add(name, "1.0.0") for name in ("a", "b")]
    for package, path in zip(packages, ("/team/a.tgz", "/public/b.tgz"), strict=True):
        server.serve(path, server.content(package))
        server.script(package, redirect(path, 307))
    fetch(settings_for(server, credentials=credentials_for(server, "/team/")), store, *packages)
    sent = {each.path: "authorization" in each.headers for each in server.seen}
    assert sent["/team/a.tgz"]
    assert not sent["/public/b.tgz"]


def test_three_redirects_are_followed_and_no_fourth(server, store):
    package = server.add("a", "1.0.0")
    paths = [f"/{number}" for number in range(4)]
    server.serve(paths[2], server.content(package))
    server.script(package, redirect(paths[0]))
    server.script(paths[0], redirect(paths[1]))
    server.script(paths[1], redirect(paths[2]))
    assert fetch(settings_for(server), store, package) == server.content(package)
    other = server.add("b", "1.0.0")
    server.script(other, redirect(server.base + other.tarball_path), *[redirect("/b")] * 9)
    server.script("/b", *[redirect("/b")] * 9)
    error = failure(settings_for(server), store, other)
    assert error.code is ReasonCode.REGISTRY_FAILED
    assert len(server.seen) == 4 + 4


@pytest.mark.parametrize(
    "target", ["ftp://other.test/a", "http://[", "https://", "file:///etc/passwd"]
)
def test_a_redirect_to_what_is_no_address_is_not_followed(server, store, target):
    package = server.add("a", "1.0.0")
    server.script(package, redirect(target))
    error = failure(settings_for(server), store, package)
    assert error.code is ReasonCode.REGISTRY_FAILED
    assert len(server.seen) == 1


# TLS and proxies


def test_a_registry_over_tls_is_trusted_by_its_authority_alone(authority, store):
    with RegistryServer(authority) as server:
        package = server.add("a", "1.0.0")
        error = failure(settings_for(server), store, package)
        assert error.code is ReasonCode.REGISTRY_FAILED
        assert "npm config set cafile" in error.message
        assert server.seen == []
        for trust in (
            {"ca_files": (authority.ca_file,)},
            {"ca_texts": (authority.ca_file.read_text(),)},
        ):
            npm = settings_for(server, credentials=credentials_for(server), **trust)
            assert fetch(npm, store, package) == server.content(package)
        assert server.seen[0].headers["authorization"] == "Bearer hunter2"


def test_a_certificate_for_another_name_is_not_accepted(authority, store):
    with RegistryServer(authority) as server:
        package = server.add("a", "1.0.0")
        server.url = server.url.replace("127.0.0.1", "127.0.0.2")
        npm = settings_for(server, ca_files=(authority.ca_file,))
        with socket.create_server(("127.0.0.2", server.port)) as other:
            threading.Thread(target=_relay, args=(other, server.port)).start()
            error = failure(npm, store, package)
        assert "127.0.0.2" in error.message
        assert "is not who it says" in error.message


def test_verification_is_off_only_where_npm_was_told_so(authority, store):
    with RegistryServer(authority) as server:
        package = server.add("a", "1.0.0")
        npm = settings_for(server, verify_tls=False)
        assert fetch(npm, store, package) == server.content(package)


def test_no_redirect_leads_away_from_tls(authority, server, store):
    with RegistryServer(authority) as secure:
        package = secure.add("a", "1.0.0")
        server.serve("/a.tgz", secure.content(package))
        secure.script(package, redirect(f"{server.origin}/a.tgz"))
        npm = settings_for(secure, ca_files=(authority.ca_file,))
        assert "away from TLS" in failure(npm, store, package).message
        assert server.seen == []


def test_an_authority_that_cannot_be_read_is_told(server, store, tmp_path):
    (tmp_path / "ca.pem").write_text("no certificate")
    npm = replace(
        settings_for(server),
        registry=Address.parse("https://127.0.0.1:9/"),
        ca_files=(tmp_path / "ca.pem",),
    )
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        npm = replace(npm, registry=Address.parse(f"https://127.0.0.1:{port}/"))
        error = failure(npm, store, Package("a", "1.0.0", integrity_of(b"")))
    assert "cafile" in error.message


def _copy(source, target):
    try:
        while data := source.recv(65536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def _relay(listener, port, heads=None):
    """Takes one connection, answers a CONNECT where `heads` collects them, joins it to a port."""
    near, _ = listener.accept()
    with near, socket.create_connection(("127.0.0.1", port)) as far:
        if heads is not None:
            head = b""
            while not head.endswith(b"\r\n\r\n"):
                head += near.recv(1)
            heads.append(head.decode())
            if head.startswith(b"CONNECT"):
                near.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
            else:
                far.sendall(head)
        back = threading.Thread(target=_copy, args=(far, near))
        back.start()
        _copy(near, far)
        back.join()


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_proxy_is_asked_with_its_own_credentials(authority, store, scheme):
    with (
        RegistryServer(authority if scheme == "https" else None) as server,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        package = server.add("a", "1.0.0")
        heads = []
        relay = threading.Thread(target=_relay, args=(listener, server.port, heads))
        relay.start()
        proxy = Address.parse(f"http://me:secret@127.0.0.1:{listener.getsockname()[1]}/")
        npm = settings_for(
            server,
            ca_files=(authority.ca_file,),
            proxies={scheme: proxy},
            credentials=credentials_for(server),
        )
        assert fetch(npm, store, package) == server.content(package)
        relay.join()
        basic = base64.b64encode(b"me:secret").decode()
        assert f"Proxy-Authorization: Basic {basic}\r\n" in heads[0]
        if scheme == "https":
            assert heads[0].startswith(f"CONNECT 127.0.0.1:{server.port} HTTP/1.1\r\n")
            assert "hunter2" not in heads[0]
            assert "proxy-authorization" not in server.seen[0].headers
        else:
            assert heads[0].startswith(f"GET {server.origin}/a/-/a-1.0.0.tgz HTTP/1.1\r\n")
        direct = replace(npm, no_proxy=("127.0.0.1",))
        assert fetch(direct, store, server.add("b", "1.0.0"))
        assert len(heads) == 1


def test_a_proxy_that_refuses_is_told_without_its_password(authority, store):
    with RegistryServer(authority) as server, RegistryServer() as proxy:
        package = server.add("a", "1.0.0")
        address = Address.parse(proxy.url.replace("//", "//me:hunter2@"))
        error = failure(settings_for(server, proxies={"https": address}), store, package)
        assert f"the proxy {proxy.origin} answered 501" in error.message
        assert "hunter2" not in error.message


# The end


def test_closing_ends_what_is_waiting_for_a_registry_that_hangs(server, store):
    package = server.add("a", "1.0.0")
    release, asked = threading.Event(), threading.Event()

    def hang(handler):
        asked.set()
        release.wait(20)

    server.script(package, hang)

    async def work():
        source = Registry(settings_for(server), store)
        waiting = asyncio.create_task(source.fetch(package))
        await asyncio.to_thread(asked.wait, 20)
        start = time.monotonic()
        await source.close()
        with pytest.raises(PackageError):
            await waiting
        return time.monotonic() - start

    assert asyncio.run(work()) < 5
    release.set()
    assert not [each for each in threading.enumerate() if "cloche-registry" in each.name]


def test_closing_ends_what_is_waiting_for_a_connection(store):
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        # With its queue full, the kernel lets the next ones wait.
        queue = [socket.socket() for _ in range(4)]
        for each in queue:
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        address = Address.parse(f"http://127.0.0.1:{listener.getsockname()[1]}/")

        async def work():
            source = Registry(NpmSettings(registry=address), store)
            waiting = asyncio.create_task(source.fetch(Package("a", "1.0.0", integrity_of(b""))))
            while not source._connections._channels:
                await asyncio.sleep(0.001)
            start = time.monotonic()
            await source.close()
            with pytest.raises(PackageError):
                await waiting
            return time.monotonic() - start

        took_s = asyncio.run(work())
        for each in queue:
            each.close()
    assert took_s < 5


def test_a_full_disk_is_the_hosts_failure(server, store, monkeypatch):
    def fail(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(PackageStore, "find", fail)
    error = failure(settings_for(server), store, server.add("a", "1.0.0"))
    assert error.code is ReasonCode.HOST_FAILED
    assert "No space left" in error.message


# The default registry


def answers(exit_code, output):
    asked = []

    def run(*argv):
        asked.append(argv)
        return CommandResult(exit_code, output)

    return run, asked


def test_npm_is_asked_for_its_default_once_and_only_where_no_setting_names_one(server, store):
    run, asked = answers(0, f"npm warn something\n{server.url}\n")
    packages = [server.add(name, "1.0.0") for name in ("a", "b")]
    assert fetch(NpmSettings(), store, *packages, run_command=run)
    assert asked == [("npm", "config", "get", "registry", "--global")]
    fetch(settings_for(server), store, *packages, run_command=run)
    assert len(asked) == 1
    assert str(find_registry(NpmSettings(), answers(0, "https://u:p@r.test/npm")[0])) == (
        "https://r.test/npm/"
    )


@pytest.mark.parametrize(
    ("exit_code", "output"), [(None, "no such file"), (1, "http://r.test/"), (0, ""), (0, "null")]
)
def test_without_a_registry_and_without_npm_the_fix_is_told(store, exit_code, output):
    run, _ = answers(exit_code, output)
    with pytest.raises(UnavailableError) as caught:
        find_registry(NpmSettings(), run)
    assert caught.value.fact == "npm-registry"
    error = failure(NpmSettings(), store, Package("a", "1.0.0", integrity_of(b"")), run_command=run)
    assert error.code is ReasonCode.REGISTRY_FAILED
    assert "npm config set registry URL" in error.message


def test_a_real_package_comes_from_this_hosts_own_registry(store):
    npm = read_settings().npm
    try:
        find_registry(npm)
    except UnavailableError as error:
        pytest.skip(f"missing fact: {error.fact} ({error})")
    # Published in 2018; a registry that does not have it is none of npm's.
    package = Package(
        "left-pad",
        "1.3.0",
        "sha512-XI5MPzVNApjAyhQzphX8BkmKsKUxD4LdyK24iZeQGinBN9yTQT3bFlCBy/aVx2HrNcqQGsdot8ghrjyr"
        "vMCoEA==",
    )
    assert len(fetch(npm, store, package)) > 1000


@pytest.mark.parametrize("credentials", [{}, {"//registry.test/": "Bearer t"}])
def test_npm_is_asked_for_its_registry_only_where_there_are_credentials(store, credentials):
    asked = []

    def run_npm(*argv):
        asked.append(argv)
        return CommandResult(0, "https://registry.test/")

    async def work():
        npm = NpmSettings(credentials=credentials)
        async with Registry(npm, store, run_command=run_npm) as registry:
            return await registry.find_scope({"a"})

    scope = asyncio.run(work())
    assert (bool(scope), len(asked)) == (bool(credentials), len(credentials))
