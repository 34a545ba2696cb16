"""Threat: a guest writes where it may not, or more than it may (threat model: files, disk).

A read-only root means: into no mount of the box goes a byte or an inode, by any call.
"""

import json

import pytest

import cloche
from attack import outside

# In every folder of every mount: 10^5 attempts at inodes in all, a megabyte, and the ways to
# change what is there. Prints what succeeded.
FILL = """
import json, os, sys
base, want = sys.argv[1], int(sys.argv[2])
places = set()
for line in open("/proc/self/mountinfo"):
    path = line.split(" ")[4]
    if path.startswith(base):
        places.add(path if os.path.isdir(path) else os.path.dirname(path))
        if not path.startswith("/proc"):
            for parent, folders, _ in os.walk(path):
                places.add(parent)
                folders[:] = [name for name in folders if parent.count("/") < 4]
places.add(base)
got = {}
def attempt(kind, place, act):
    try:
        act()
        got.setdefault(kind, []).append(place)
    except (OSError, ValueError):
        pass
inodes = -(-want // len(places))
for place in sorted(places):
    try:
        open(place + "/cloche-a", "xb").write(bytes(1 << 20))
        got.setdefault("bytes", []).append(place)
    except OSError:
        pass
    for number in range(inodes):
        name = f"{place}/cloche-{number}"
        try:
            (os.mkdir, lambda p: os.symlink("x", p), os.mkfifo,
             lambda p: os.close(os.open(p, os.O_CREAT | os.O_EXCL | os.O_WRONLY)))[number % 4](name)
            got.setdefault("inodes", []).append(name)
        except OSError:
            pass
    attempt("unnamed", place, lambda: os.close(os.open(place, os.O_TMPFILE | os.O_RDWR)))
    attempt("chmod", place, lambda: os.chmod(place, 0o777))
    if not place.startswith("/proc/"):  # the times of its own /proc files: kept nowhere
        attempt("utime", place, lambda: os.utime(place))
    attempt("xattr", place, lambda: os.setxattr(place, "user.cloche", b"x"))
    for name in os.listdir(place)[:5] if os.access(place, os.R_OK) else ():
        path = f"{place}/{name}"
        if os.path.isfile(path) and not path.startswith("/proc/"):
            attempt("overwrite", path, lambda: os.close(os.open(path, os.O_WRONLY)))
            attempt("link", path, lambda: os.link(path, path + "-cloche"))
            attempt("rename", path, lambda: os.rename(path, path + "-cloche"))
            attempt("unlink", path, lambda: os.unlink(path))
print(json.dumps([sorted(places), got]))
"""
QUOTA_BYTES = """
import json, os
written = {}
for name, place in enumerate(("/workspace", "/tmp", "/dev/shm", os.path.expanduser("~"), ".")):
    count = 0
    try:
        with open(f"{place}/filled-{name}", "wb", buffering=0) as file:
            while count < 200:
                file.write(b"\\xa5" * (1 << 20))
                count += 1
    except OSError as error:
        written[place] = [count, error.errno]
    else:
        written[place] = [count, 0]
print(json.dumps(written))
"""
QUOTA_INODES = """
import json, os
made = {}
for place in ("/workspace", "/tmp", "/dev/shm"):
    count = 0
    try:
        while count < 100_000:
            os.symlink("x", f"{place}/{count}") if count % 2 else os.mkdir(f"{place}/{count}")
            count += 1
    except OSError as error:
        made[place] = [count, error.errno]
print(json.dumps(made))
"""
ENOSPC, EFBIG = 28, 27


def test_nothing_goes_into_any_mount_of_a_sealed_box(shared_sandbox, tmp_path):
    places, got = outside(FILL, str(tmp_path), "400")
    assert places == [str(tmp_path)]
    assert len(got["inodes"]) == 400 and len(got["bytes"]) == 1
    assert {"unnamed", "chmod", "utime", "overwrite", "link", "rename"} <= set(got)
    result = shared_sandbox.run(
        FILL, language="python", mode="program", args=["/", "100000"], timeout_ms=30_000
    )
    assert result.ok, (result.error, result.stderr)
    places, got = json.loads(result.stdout)
    assert {"/", "/proc", "/proc/sys", "/dev", "/workspace", "/tmp", "/dev/shm"} <= set(places)
    assert got == {}


def test_nothing_goes_into_any_mount_of_a_javascript_box(shared_sandbox):
    """A JavaScript box has other mounts than a Python one."""
    code = """
const fs = require("node:fs");
const mounts = fs.readFileSync("/proc/self/mountinfo", "utf8").trim().split("\\n");
const places = new Set(mounts.map(line => line.split(" ")[4]));
for (const place of ["/usr", "/usr/bin", "/opt/cloche", "/etc", "/dev"]) places.add(place);
const got = [];
for (const place of places) {
  for (const act of [
    () => fs.writeFileSync(place + "/cloche", "x"), () => fs.mkdirSync(place + "/cloche-folder"),
    () => fs.symlinkSync("x", place + "/cloche-link"), () => fs.chmodSync(place, 0o777),
    () => { if (!/^.(dev|proc)/.test(place)) fs.appendFileSync(place, "x"); else throw 0; },
  ]) {
    try { act(); got.push(place + " " + act); } catch {}
  }
}
return got;
"""
    assert shared_sandbox.run(code).value == []


def test_without_allow_fs_an_error_says_what_would_help(shared_sandbox):
    for language, code in (
        ("python", "open('/tmp/x', 'w')"),
        ("javascript", "require('node:fs').writeFileSync('/tmp/x', 'x')"),
    ):
        result = shared_sandbox.run(code, language=language)
        assert result.error_code is cloche.SandboxErrorCode.EXECUTION_ERROR
        assert "allow_fs" in result.error


@pytest.mark.case("res-15-disk-many-files")
def test_one_quota_of_bytes_holds_over_all_writable_places(shared_sandbox):
    result = shared_sandbox.run(
        QUOTA_BYTES,
        language="python",
        mode="program",
        allow_fs=True,
        scratch_limit_mb=24,
        memory_limit_mb=256,
        timeout_ms=20_000,
    )
    assert result.ok, (result.error, result.stderr)
    written = json.loads(result.stdout)
    assert {errno for _, errno in written.values()} <= {ENOSPC, EFBIG}
    assert 22 <= sum(count for count, _ in written.values()) <= 24


def test_one_quota_of_inodes_holds_over_all_writable_places(shared_sandbox):
    result = shared_sandbox.run(
        QUOTA_INODES,
        language="python",
        mode="program",
        allow_fs=True,
        memory_limit_mb=256,
        timeout_ms=20_000,
    )
    assert result.ok, (result.error, result.stderr)
    made = json.loads(result.stdout)
    assert [errno for _, errno in made.values()] == [ENOSPC] * 3
    total = sum(count for count, _ in made.values())
    assert 16_000 <= total <= 16_384


def test_with_allow_fs_nothing_goes_anywhere_but_into_the_three_places(shared_sandbox):
    code = FILL.replace("for place in sorted(places):", "for place in sorted(places):\n"
                        "    if place in ('/workspace', '/tmp', '/dev/shm'): continue")  # fmt: skip
    result = shared_sandbox.run(
        code,
        language="python",
        mode="program",
        allow_fs=True,
        args=["/", "20000"],
        timeout_ms=20_000,
    )
    assert result.ok, (result.error, result.stderr)
    assert json.loads(result.stdout)[1] == {}


def test_a_mounted_folder_of_the_host_is_read_only(shared_sandbox, open_folder):
    (open_folder / "kept").write_text("kept")
    open_folder.chmod(0o777)
    (open_folder / "kept").chmod(0o666)
    code = """
import os
got = []
for act in (lambda: open("data/kept", "a"), lambda: open("data/new", "w"),
            lambda: os.unlink("data/kept"), lambda: os.chmod("data", 0o700),
            lambda: os.symlink("/", "data/link"), lambda: os.rename("data", "moved")):
    try:
        act(); got.append("done")
    except OSError:
        pass
[got, open("data/kept").read()]
"""
    mounts = [cloche.Mount(str(open_folder), "data")]
    for allow_fs in (False, True):
        result = shared_sandbox.run(code, language="python", mounts=mounts, allow_fs=allow_fs)
        assert result.value == [[], "kept"], result.error
    assert sorted(path.name for path in open_folder.iterdir()) == ["kept"]
