"""Pages and wheels of an index: what comes in, from where, and what is said when it does not."""

import asyncio
import json

import pytest

from cloche.egress import pypi
from cloche.egress.pypi import Index
from cloche.egress.registry import PackageError
from cloche.model.job import ReasonCode
from cloche.model.wheel import LockedProject, Wheel
from cloche.settings import Address, PipSettings
from cloche.store.packages import PackageStore
from index_server import IndexServer, make_wheel
from registry_server import hang_up, make_authority, redirect, status, truncated

MIRROR = "http://127.0.0.1:4873"


@pytest.fixture
def server():
    with IndexServer() as server:
        yield server


@pytest.fixture
def store(tmp_path):
    return PackageStore(tmp_path / "packages")


def settings_for(server, **fields):
    return PipSettings(index=Address.parse(server.url), **fields)


def project(published):
    return LockedProject(published.name, (published.version,), frozenset({published.sha256}))


def wheel(published):
    return Wheel(published.name, published.sha256)


def fetch(pip, store, *items):
    """Fetches items one after another; the last one's content."""

    async def work():
        async with Index(pip, store, mirror=MIRROR, jitter=lambda: 0) as index:
            for item in items:
                path = await index.fetch(item)
            return path.read_bytes()

    return asyncio.run(work())


def failure(pip, store, item):
    with pytest.raises(PackageError) as caught:
        fetch(pip, store, item)
    assert item.name in caught.value.message
    return caught.value


def test_a_page_lists_the_wheels_of_the_lockfile_alone_at_the_mirror(server, store):
    server.publish("a-b", "0.9", file_name="a_b-0.9-py3-none-any.whl")
    locked = server.publish("a-b", "1.0", file_name="a_b-1.0-py3-none-any.whl")
    page = json.loads(fetch(settings_for(server), store, project(locked)))
    assert page["files"] == [
        {
            "filename": "a_b-1.0-py3-none-any.whl",
            "url": f"{MIRROR}/files/a-b/{locked.sha256}/a_b-1.0-py3-none-any.whl",
            "hashes": {"sha256": locked.sha256},
        }
    ]
    assert server.seen[0].headers["accept"].startswith("application/vnd.pypi.simple.v1+json")


def test_a_wheel_comes_whole_and_is_not_asked_for_twice(server, store):
    published = server.publish("a", "1.0")
    pip = settings_for(server)
    assert fetch(pip, store, wheel(published)) == make_wheel("a", "1.0")
    assert server.paths() == ["/simple/a/", "/packages/a-1.0-py3-none-any.whl"]
    assert fetch(pip, store, wheel(published)) == make_wheel("a", "1.0")
    assert len(server.seen) == 2


def test_one_hash_under_another_name_is_another_wheel(server, store):
    published = server.publish("a", "1.0")
    pip = settings_for(server)
    fetch(pip, store, wheel(published))
    error = failure(pip, store, Wheel("b", published.sha256))
    assert error.code is ReasonCode.PACKAGE_UNAVAILABLE


def test_what_is_damaged_in_the_store_is_fetched_again(server, store, tmp_path):
    published = server.publish("a", "1.0")
    pip = settings_for(server)
    fetch(pip, store, wheel(published))
    (path,) = (tmp_path / "packages").glob("*.tgz")
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    assert fetch(pip, store, wheel(published)) == make_wheel("a", "1.0")
    assert len(server.seen) == 4


def test_what_fails_at_first_is_asked_for_again(server, store):
    published = server.publish("a", "1.0")
    data = make_wheel("a", "1.0")
    server.script("/simple/a/", hang_up, status(503))
    server.script(published.path, status(200, b"wrong"), truncated(data[:50], len(data)))
    assert fetch(settings_for(server), store, wheel(published)) == data


def test_wrong_bytes_are_refused_and_not_kept(server, store, tmp_path):
    published = server.publish("a", "1.0", told_sha256="1" * 64)
    error = failure(settings_for(server), store, wheel(published))
    assert error.code is ReasonCode.INTEGRITY_MISMATCH
    assert [each.name for each in (tmp_path / "packages").iterdir()] == ["incoming"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (401, ReasonCode.PACKAGE_UNAVAILABLE),
        (404, ReasonCode.PACKAGE_UNAVAILABLE),
        (500, ReasonCode.REGISTRY_FAILED),
    ],
)
def test_an_index_that_does_not_give_a_page_is_named(server, store, code, reason):
    published = server.publish("a", "1.0")
    server.script("/simple/a/", *[status(code)] * 3)
    error = failure(settings_for(server), store, project(published))
    assert error.code is reason
    assert server.origin in error.message
    assert len(server.seen) == (3 if reason is ReasonCode.REGISTRY_FAILED else 1)


@pytest.mark.parametrize("page", [b"{}", b'{"files": [1]}', b"{" * 100_000, b'{"files": "x"}'])
def test_a_page_that_is_none_is_refused(server, store, page):
    published = server.publish("a", "1.0")
    server.serve("/simple/a/", page)
    error = failure(settings_for(server), store, project(published))
    assert error.code is ReasonCode.REGISTRY_FAILED


def test_a_page_without_hashes_says_so(server, store):
    published = server.publish("a", "1.0")
    server.serve("/simple/a/", b'<a href="../../packages/a-1.0-py3-none-any.whl">a</a>')
    error = failure(settings_for(server), store, project(published))
    assert error.code is ReasonCode.PACKAGE_UNAVAILABLE
    assert "no sha256" in error.message


def test_pages_and_wheels_are_bounded(server, store, monkeypatch):
    published = server.publish("a", "1.0")
    monkeypatch.setattr(pypi, "WHEEL_BYTES_LIMIT", 10)
    error = failure(settings_for(server), store, wheel(published))
    assert error.code is ReasonCode.PACKAGE_UNAVAILABLE
    monkeypatch.setattr(pypi, "PAGE_BYTES_LIMIT", 10)
    error = failure(settings_for(server), store, project(published))
    assert "over the limit of 10 bytes" in error.message


def test_credentials_go_to_the_index_and_not_to_where_its_files_are(server, store):
    with IndexServer() as other:
        published = server.publish("a", "1.0")
        server.script(published.path, redirect(f"{other.origin}/a.whl"))
        other.serve("/a.whl", make_wheel("a", "1.0"))
        header = {f"//127.0.0.1:{server.port}/": "Basic c2VjcmV0"}
        pip = settings_for(server, credentials=header)
        fetch(pip, store, wheel(published))
        assert {each.headers["authorization"] for each in server.seen} == {"Basic c2VjcmV0"}
        assert [each.headers.get("authorization") for each in other.seen] == [None]
        # What was had with them is not given to those who have none.
        server.script("/simple/a/", status(401))
        failure(settings_for(server), store, wheel(published))


def test_credentials_are_part_of_what_a_layer_is_kept_under(server, store):
    async def scope(pip):
        async with Index(pip, store, mirror=MIRROR) as index:
            return await index.find_scope({"a"})

    header = {f"//127.0.0.1:{server.port}/": "Basic c2VjcmV0"}
    assert asyncio.run(scope(settings_for(server))) == ""
    told = asyncio.run(scope(settings_for(server, credentials=header)))
    assert len(told) == 64 and "c2VjcmV0" not in told


def test_a_further_index_is_asked_for_what_the_first_does_not_have(server, store):
    with IndexServer() as other:
        published = other.publish("a", "1.0")
        server.publish("a", "9.0")
        pip = settings_for(server, extra_indexes=(Address.parse(other.url),))
        assert json.loads(fetch(pip, store, project(published)))["files"]
        assert fetch(pip, store, wheel(published)) == make_wheel("a", "1.0")


def test_an_index_that_is_not_who_it_says_is_not_believed(store, tmp_path):
    authority = make_authority(tmp_path)
    with IndexServer(authority) as server:
        published = server.publish("a", "1.0")
        error = failure(settings_for(server), store, wheel(published))
        assert "pip config set global.cert FILE" in error.message
        trusted = settings_for(server, ca_files=(authority.ca_file,))
        assert fetch(trusted, store, wheel(published)) == make_wheel("a", "1.0")


def test_pages_are_gone_once_the_index_is_closed(server, store):
    published = server.publish("a", "1.0")

    async def work():
        async with Index(settings_for(server), store, mirror=MIRROR) as index:
            path = await index.fetch(project(published))
            assert path.exists()
        return path

    path = asyncio.run(work())
    assert not path.parent.exists()
    with pytest.raises(RuntimeError):  # the threads are gone too
        asyncio.run(_use_closed(server, store, project(published)))


async def _use_closed(server, store, item):
    index = Index(settings_for(server), store, mirror=MIRROR)
    await index.close()
    await index.fetch(item)
