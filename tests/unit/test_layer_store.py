"""Layers: whole or not there, as they were made or not at all, and never removed while in use."""

import asyncio
import multiprocessing
import os
import time
from pathlib import Path

import pytest

from cloche.environments.layers import LayerStore, MadeOf
from cloche.environments.trees import digest_tree, stamp_tree
from cloche.linux.gathering import TreeCopy, copy_tree

FILES = {"node_modules/a/index.js": b"1", "node_modules/a/bin": b"#!", "node_modules/b.js": b"22"}


@pytest.fixture
def store(tmp_path):
    return LayerStore(tmp_path)


def add(store, key, files=FILES, made_of=None):
    async def fill(tree):
        counts = TreeCopy(10**9, 10**6)
        root = Path(f"/proc/self/fd/{tree}")
        for path, content in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_bytes(content)
            counts.size_bytes += len(content)
            counts.entries_count += 1
        (root / "node_modules/a/bin").chmod(0o755)
        (root / "node_modules/link").symlink_to("a/index.js")
        return counts

    async def whole():
        async with store.making(key):
            return await store.add(key, fill, made_of=made_of)

    return asyncio.run(whole())


def close(layer):
    layer.close()
    return layer


def test_a_layer_is_found_as_it_was_made(store):
    made = close(add(store, "k"))
    found = close(store.find("k"))
    assert (found.key, found.sha256, found.size_bytes) == ("k", made.sha256, 5)
    assert (found.tree / "node_modules/a/index.js").read_bytes() == b"1"
    assert store.verify("k")
    assert store.find("other") is None


def test_the_hash_of_a_layer_is_that_of_what_it_holds_and_nothing_else(store):
    first, second = close(add(store, "one")), close(add(store, "two"))
    assert first.sha256 == second.sha256
    os.utime(second.tree / "node_modules/b.js", (1, 1))
    assert digest_tree(second.tree).sha256 == first.sha256
    hashes = {first.sha256}
    for change in (
        lambda tree: (tree / "node_modules/b.js").write_bytes(b"23"),
        lambda tree: (tree / "node_modules/b.js").chmod(0o755),
        lambda tree: (tree / "node_modules/b.js").rename(tree / "node_modules/c.js"),
        lambda tree: (tree / "node_modules/new").mkdir(),
        lambda tree: (tree / "node_modules/other").symlink_to("x"),
    ):
        change(second.tree)
        hashes.add(digest_tree(second.tree).sha256)
    assert len(hashes) == 6


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: (folder / "tree/node_modules/b.js").unlink(),
        lambda folder: (folder / "tree/node_modules/b.js").write_bytes(b"333"),
        lambda folder: (folder / "tree/node_modules/b.js").write_bytes(b"33"),
        lambda folder: (folder / "tree/node_modules/more").mkdir(),
        lambda folder: (folder / "tree/node_modules/b.js").chmod(0o600),
        lambda folder: (folder / "layer.json").write_text("{}"),
        lambda folder: (folder / "layer.json").write_text(""),
        lambda folder: (folder / "layer.json").unlink(),
        lambda folder: (folder / "tree").rename(folder / "other"),
    ],
)
def test_a_layer_that_was_changed_is_gone_and_can_be_made_anew(store, tmp_path, damage):
    close(add(store, "k"))
    damage(tmp_path / "layers/k")
    assert store.find("k") is None
    assert not store.verify("k")
    close(add(store, "k"))
    assert close(store.find("k")).tree.exists()


def test_a_change_of_content_alone_is_found_when_it_is_looked_for(store, tmp_path):
    close(add(store, "k"))
    path = tmp_path / "layers/k/tree/node_modules/b.js"
    times = path.stat()
    path.write_bytes(b"33")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert store.find("k").close() is None  # names, sizes and times are those that they were
    assert not store.verify("k")


def test_those_used_longest_ago_go_first(store):
    for number, key in enumerate(("a", "b", "c", "d")):
        close(add(store, key))
        os.utime(store._folder / key / "layer.json", (number, number))
    close(store.find("a"))  # now it is the last
    assert [each.key for each in store.list()] == ["b", "c", "d", "a"]
    assert store.prune(10) == (2, 10)
    assert [each.key for each in store.list()] == ["d", "a"]
    assert store.prune(10) == (0, 0)
    assert store.prune(0) == (2, 10)
    assert store.list() == []


def test_one_in_use_is_never_removed(store, tmp_path):
    used = add(store, "used")
    close(add(store, "other"))
    assert {each.key: each.is_used for each in store.list()} == {"used": True, "other": False}
    assert LayerStore(tmp_path).prune(0) == (1, 5)
    assert not store.remove("used")
    assert (used.tree / "node_modules/b.js").exists()
    used.close()
    used.close()
    assert store.remove("used")
    assert not store.remove("used")


def test_a_new_one_is_in_use_before_anybody_can_find_it(store, tmp_path, monkeypatch):
    removed = []
    rename = Path.rename

    def rename_then_prune(path, target):
        rename(path, target)
        monkeypatch.undo()
        removed.append(LayerStore(tmp_path).prune(0))

    monkeypatch.setattr(Path, "rename", rename_then_prune)
    layer = add(store, "k")
    assert removed == [(0, 0)]
    assert (layer.tree / "node_modules/b.js").exists()
    layer.close()
    assert store.prune(0) == (1, 5)


def _use(folder, key, begun, end):
    layer = LayerStore(folder).find(key)
    begun.set()
    end.wait(10)
    layer.close()


@pytest.mark.live
def test_another_process_that_uses_it_counts_too_until_it_ends(store, tmp_path):
    close(add(store, "k"))
    context = multiprocessing.get_context("fork")
    begun, end = context.Event(), context.Event()
    process = context.Process(target=_use, args=(tmp_path, "k", begun, end))
    process.start()
    assert begun.wait(10)
    assert store.prune(0) == (0, 0)
    end.set()
    process.join()
    assert store.prune(0) == (1, 5)
    process.close()


def test_a_damaged_one_in_use_makes_way_and_stays_for_whom_it_serves(store, tmp_path):
    used = add(store, "k")
    (used.tree / "node_modules/b.js").unlink()
    assert LayerStore(tmp_path).find("k") is None
    close(add(store, "k"))
    (left,) = (tmp_path / "layers").glob(".gone-*")
    assert (left / "tree/node_modules/a/index.js").exists()
    LayerStore(tmp_path)
    assert left.exists()
    used.close()
    LayerStore(tmp_path)
    assert not left.exists()
    assert close(store.find("k")).tree.exists()


def test_a_look_at_the_list_costs_no_one_a_layer(store, tmp_path):
    close(add(store, "k"))
    deadline = time.monotonic() + 0.3
    other = LayerStore(tmp_path)

    async def both():
        async def look():
            while time.monotonic() < deadline:
                await asyncio.to_thread(other.list)

        async def find():
            while time.monotonic() < deadline:
                layer = await asyncio.to_thread(store.find, "k")
                assert layer is not None
                layer.close()

        await asyncio.gather(look(), find())

    asyncio.run(both())


def test_the_stamp_of_what_is_not_there_is_none(tmp_path):
    assert stamp_tree(tmp_path / "nowhere") == ""


def packages(*names, version="1"):
    return {f"{name}@{version}": f"hash of {name}" for name in names}


def base_of(store, made_of):
    found = store.find_base(made_of)
    if found is None:
        return None
    found[0].close()
    return found[0].key, set(found[1])


def test_a_base_is_the_layer_of_the_family_with_most_packages_in_common(store):
    close(add(store, "few", made_of=MadeOf("family", packages("a", "b"))))
    close(add(store, "most", made_of=MadeOf("family", packages("a", "b", "c", "z"))))
    close(add(store, "other", made_of=MadeOf("other", packages("a", "b", "c", "d"))))
    close(add(store, "none"))
    wanted = packages("a", "b", "c", "d")
    assert base_of(store, MadeOf("family", wanted)) == ("most", set(packages("a", "b", "c")))
    assert base_of(store, MadeOf("other", wanted)) == ("other", set(wanted))
    assert base_of(store, MadeOf("third", wanted)) is None
    assert base_of(store, MadeOf("", wanted)) is None


def test_a_base_has_at_least_half_of_the_packages(store):
    close(add(store, "two", made_of=MadeOf("family", packages("a", "b"))))
    assert base_of(store, MadeOf("family", packages("a", "b", "c", "d"))) is not None
    assert base_of(store, MadeOf("family", packages("a", "b", "c", "d", "e"))) is None
    assert base_of(store, MadeOf("family", {})) is None


def test_a_base_has_no_package_under_whose_name_another_is_wanted(store):
    close(add(store, "k", made_of=MadeOf("family", packages("a", "b", "c"))))
    wanted = packages("a", "b", "c")
    assert base_of(store, MadeOf("family", wanted)) is not None
    assert base_of(store, MadeOf("family", {**wanted, "a@1": "another hash"})) is None
    assert base_of(store, MadeOf("family", {**wanted, "a@2": "another hash"})) is not None


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"packages": 1, "files": {}}', None])
def test_a_layer_whose_contents_cannot_be_read_is_no_base_and_serves_on(store, text):
    made_of = MadeOf("family", packages("a"))
    layer = close(add(store, "k", made_of=made_of))
    assert base_of(store, made_of) is not None
    place = layer.tree.parent / "contents.json"
    place.unlink() if text is None else place.write_text(text)
    assert base_of(store, made_of) is None
    assert close(store.find("k")).read_digests() == {}


def test_a_damaged_layer_is_no_base(store):
    made_of = MadeOf("family", packages("a"))
    layer = close(add(store, "k", made_of=made_of))
    (layer.tree / "node_modules/b.js").write_bytes(b"333")
    assert base_of(store, made_of) is None


def test_a_layer_that_starts_from_another_has_the_hash_of_what_it_holds(store):
    base = add(store, "base", made_of=MadeOf("family", packages("a")))

    async def fill(tree):
        counts = TreeCopy(10**9, 10**6)
        opened = [os.open(base.tree, os.O_RDONLY) for _ in range(2)]
        counts.base = opened[1]
        copy_tree(opened[0], tree, "", counts, base=opened[1])
        for each in opened:
            os.close(each)
        return counts

    async def whole():
        async with store.making("next"):
            return await store.add("next", fill, base=base)

    following = close(asyncio.run(whole()))
    close(base)
    assert following.sha256 == base.sha256 == digest_tree(following.tree).sha256
    path = "node_modules/a/index.js"
    assert not (following.tree / path).samefile(base.tree / path)
    assert store.verify("next")
