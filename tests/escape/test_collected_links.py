"""Threat: the host follows a link that the guest left, when it collects or cleans up."""

import json

import pytest

TOKEN = "token-3a9c"


@pytest.fixture
def marker(tmp_path):
    path = tmp_path / "marker"
    path.write_text(TOKEN)
    return path


def told(result):
    """All that came back, as one text."""
    files = {name: data.decode(errors="replace") for name, data in result.files.items()}
    return json.dumps([files, result.stdout, result.stderr, result.error, repr(result.value)])


# https://github.com/compiler-explorer/compiler-explorer/issues/6026
@pytest.mark.case("link-01-result-file-symlink")
def test_a_link_in_place_of_a_result_file_is_not_followed(shared_sandbox, marker):
    code = """
import os
for name in ("result.json", "stdout", "dir", "main.txt"):
    if os.path.lexists(name):
        os.remove(name)
    os.symlink(target, name)
os.makedirs("out")
os.symlink(target, "out/deep")
os.symlink(os.path.dirname(target), "out/folder")
os.symlink("/", "root")
os.symlink("out/plain", "relative")
open("out/plain", "w").write("plain")
os.mkfifo("out/fifo")
os.link("out/plain", "out/second")
"""
    result = shared_sandbox.run(
        code,
        {"target": str(marker)},
        language="python",
        files={"result.json": "{}", "main.txt": "mine"},
        collect=["**", "dir/*", "root/etc/*", f"root{marker}", "out/folder/*"],
    )
    assert result.ok, result.error
    assert dict(result.files) == {"out/plain": b"plain", "out/second": b"plain"}
    assert TOKEN not in told(result)


# https://github.com/multikernel/sandlock/issues/246
@pytest.mark.case("link-07-supervisor-proc-self")
def test_a_link_to_proc_self_tells_nothing_of_the_collector(shared_sandbox, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", TOKEN)
    code = """
import os
os.mkdir("dist")
for number, target in enumerate((
    "/proc/self/environ", "/proc/thread-self/cmdline", "/proc/self/fd/0", "/proc/self/cwd",
    "/proc/self/root/etc/passwd", "/proc/1/environ",
)):
    os.symlink(target, f"dist/{number}")
open("dist/real", "w").write("real")
"""
    result = shared_sandbox.run(code, language="python", collect=["dist/**"])
    assert result.ok, result.error
    assert dict(result.files) == {"dist/real": b"real"}
    assert TOKEN not in told(result)


# https://github.com/infiniflow/ragflow/pull/14637
@pytest.mark.case("link-04-swap-race")
def test_a_file_swapped_with_a_link_during_collection_never_leads_out(shared_sandbox, marker):
    code = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        end = time.monotonic() + 3
        while time.monotonic() < end:
            for make in (lambda: open("t", "w").write("plain"), lambda: os.symlink(target, "t")):
                try:
                    make()
                    os.replace("t", "out.txt")
                except OSError:
                    pass
    os._exit(0)
time.sleep(0.05)
"""
    seen = set()
    for _ in range(20):
        result = shared_sandbox.run(
            code, {"target": str(marker)}, language="python", collect=["out.txt", "t"]
        )
        assert result.ok, result.error
        assert set(result.files.values()) <= {b"plain", b""}
        assert TOKEN not in told(result)
        seen.add(bool(result.files))
    assert seen  # whether a file or a link is there at the end is the guest's luck


# https://github.com/judge0/judge0/security/advisories/GHSA-3xpw-36v7-2cmg
@pytest.mark.case("link-03-cleanup-chown")
def test_cleaning_up_touches_nothing_through_a_link(shared_sandbox, tmp_path):
    canary = tmp_path / "canary"
    canary.mkdir()
    (canary / "file").write_text("kept")

    def state():
        return [(p.name, p.lstat().st_mode, p.lstat().st_uid, p.lstat().st_mtime_ns) for p in
                (canary, canary / "file")]  # fmt: skip

    before = state()
    code = """
import os
os.symlink(target, "link")
os.makedirs("locked/inner")
open("locked/inner/file", "w").write("x")
os.chmod("locked/inner", 0)
os.chmod("locked", 0)
os.chmod(".", 0)
"""
    result = shared_sandbox.run(
        code, {"target": str(canary)}, language="python", collect=["**", "link/*"]
    )
    assert result.ok, result.error
    assert state() == before
    assert (canary / "file").read_text() == "kept"
    assert [path.name for path in canary.iterdir()] == ["file"]


def test_a_giant_and_a_deep_tree_do_not_hold_up_the_collection(shared_sandbox):
    code = """
import os
with open("sparse", "wb") as file:
    file.truncate(60 << 20)
for _ in range(3000):
    os.mkdir("d")
    os.chdir("d")
open("bottom", "w").write("x")
"""
    result = shared_sandbox.run(code, language="python", collect=["**"], timeout_ms=10_000)
    assert result.ok, result.error
    assert set(result.files) <= {"sparse"}
