"""Layers below /workspace, seen copy-on-write; and sockets of a box that Cloche serves."""

import asyncio
import os
import socket

import pytest

from cloche.backends.base import Sinks
from cloche.backends.namespaces import NamespacesBackend
from cloche.environments import roots, runtimes
from cloche.errors import UnavailableError
from cloche.model.outcome import Cause
from cloche.model.plan import BoxPlan, Command, Scratch
from cloche.model.policy import Limits
from needs import BOX, needs

pytestmark = needs(*BOX, "runtime-python")


class Session:
    def __init__(self, box):
        self.box = box
        self.printed = ""

    async def run(self, code):
        def take(chunk):
            self.printed += chunk.decode()

        command = Command(("/usr/bin/python3", "-I", "-S", "-c", code), env={})
        sinks = Sinks(take, take, lambda chunk: None)
        return await self.box.exec(command, stdin=b"", control=b"", sinks=sinks)


def in_a_box(work, *, layers=(), files=None, listen_ports=(), scratch_mb=64, inodes=10_000):
    async def whole():
        backend = NamespacesBackend()
        try:
            environment = roots.python_environment(runtimes.require_runtime("python"))
            limits = Limits(
                timeout_ms=30_000,
                memory_mb=512,
                scratch_mb=scratch_mb,
                scratch_inodes_count=inodes,
            )
            plan = BoxPlan(
                environment,
                limits,
                Scratch.WRITABLE,
                files=files or {},
                executables=frozenset({"run.sh"}),
                layers=tuple(map(str, layers)),
                listen_ports=listen_ports,
            )
            session = Session(await backend.create(plan))
            try:
                return await work(session)
            finally:
                await session.box.destroy()
        finally:
            await backend.close()

    return asyncio.run(whole())


@pytest.fixture
def layer(tmp_path):
    """A folder as Cloche lays one down."""
    modules = tmp_path / "layer" / "node_modules"
    (modules / "pkg" / "lib").mkdir(parents=True)
    (modules / "pkg" / "index.js").write_text("original\n")
    (modules / "pkg" / "lib" / "tool.sh").write_text("#!/bin/sh\n")
    (modules / "pkg" / "lib" / "tool.sh").chmod(0o755)
    (modules / "link").symlink_to("pkg")
    return tmp_path / "layer"


def state_of(folder):
    """Every path with what a guest could have changed of it."""
    found = {}
    for path in sorted(folder.rglob("*")):
        status = path.lstat()
        content = path.read_bytes() if path.is_file() and not path.is_symlink() else None
        found[str(path.relative_to(folder))] = (status.st_mode, status.st_uid, content)
    return found


ATTACK = """
import os, shutil
pkg = "node_modules/pkg/"
open(pkg + "index.js", "a").write("POISON")
os.chmod(pkg + "lib/tool.sh", 0o600)
os.utime(pkg + "lib/tool.sh", (1, 1))
shutil.rmtree(pkg + "lib")
os.mkdir(pkg + "lib")
os.remove("node_modules/link")
open("node_modules/new", "w").write("new")
print(open(pkg + "index.js").read(), os.listdir(pkg + "lib"), sorted(os.listdir("node_modules")))
"""


def test_a_box_may_change_all_of_a_layer_and_the_layer_stays_as_it_was(layer):
    before = state_of(layer)

    async def work(session):
        outcome = await session.run(ATTACK)
        assert outcome.exit_code == 0, session.printed

    for _ in range(2):  # the second box finds nothing of the first

        async def twice(session):
            await work(session)
            assert session.printed == "original\nPOISON [] ['new', 'pkg']\n"

        in_a_box(twice, layers=[layer])
    assert state_of(layer) == before


def test_what_lies_in_a_layer_belongs_to_the_guest(layer):
    async def work(session):
        await session.run("import os; print(os.stat('node_modules/pkg').st_uid, os.getuid())")
        assert session.printed == "1000 1000\n"

    in_a_box(work, layers=[layer])


def test_files_lie_above_layers_and_upper_layers_above_lower_ones(layer, tmp_path):
    upper = tmp_path / "upper"
    (upper / "node_modules" / "pkg").mkdir(parents=True)
    (upper / "node_modules" / "pkg" / "index.js").write_text("upper\n")
    (upper / "node_modules" / "pkg" / "other.js").write_text("other\n")

    async def work(session):
        await session.run(
            "for n in ('index.js', 'other.js'): print(open('node_modules/pkg/' + n).read(), end='')"
            "\nimport os; print(os.listdir('node_modules/pkg/lib'), os.access('run.sh', os.X_OK),"
            " os.access('a/plain', os.X_OK))"
        )
        assert session.printed == "upper\nfile\n['tool.sh'] True False\n"

    files = {"node_modules/pkg/other.js": b"file\n", "run.sh": b"", "a/plain": b""}
    in_a_box(work, layers=[upper, layer], files=files)


@pytest.mark.case("res-15-disk-many-files")
@pytest.mark.parametrize("place", ["/workspace", "/workspace/node_modules/pkg", "/tmp", "/dev/shm"])
def test_scratch_with_layers_is_capped_in_bytes_and_in_inodes_everywhere(layer, place):
    fill = f"""
import os
chunk, written = b"x" * (1 << 20), 0
try:
    for index in range(64):
        with open(f"{place}/big{{index % 8}}", "ab", buffering=0) as file:
            written += file.write(chunk)
except OSError as error:
    print(error.strerror)
print(written <= 16 << 20)
for index in range(8):
    os.remove(f"{place}/big{{index}}")
made = 0
try:
    for index in range(5000):
        open(f"{place}/f{{index}}", "w").close()
        made += 1
except OSError as error:
    print(error.strerror, made < 2000)
"""

    async def work(session):
        await session.run(fill)
        full = "No space left on device"
        assert session.printed == f"{full}\nTrue\n{full} True\n"
        report = session.box.isolation.controls["scratch"]
        assert "size=16384k,nr_inodes=2000" in report.evidence

    in_a_box(work, layers=[layer], scratch_mb=16, inodes=2000)


def test_no_path_of_the_host_is_to_be_read_from_a_layers_mount(layer):
    async def work(session):
        await session.run("print(open('/proc/self/mountinfo').read())")
        assert "overlay" in session.printed
        assert str(layer) not in session.printed

    in_a_box(work, layers=[layer])


def test_a_missing_layer_is_refused_by_name(tmp_path):
    async def work(session):
        raise AssertionError("unreachable")

    with pytest.raises(UnavailableError, match="layer"):
        in_a_box(work, layers=[tmp_path / "nothing"])


CONNECT = """
import socket
with socket.create_connection(("127.0.0.1", 4873), 5) as client:
    client.sendall(b"ping")
    print(client.recv(100).decode())
"""


def test_a_port_of_the_box_is_served_from_outside_and_lives_in_the_box_alone():
    async def work(session):
        async def answer(reader, writer):
            writer.write(b"got " + await reader.read(100))
            writer.close()

        listener = await session.box.listen(4873)
        assert listener.getsockname() == ("127.0.0.1", 4873)
        async with await asyncio.start_server(answer, sock=listener):
            with pytest.raises(OSError, match="refused"):
                socket.create_connection(("127.0.0.1", 4873), 5).close()  # on the host
            outcome = await session.run(CONNECT)
        assert (outcome.cause, session.printed) == (Cause.EXITED, "got ping\n")

    in_a_box(work, listen_ports=(4873,))


def test_ports_that_were_not_asked_for_are_closed():
    async def work(session):
        outcome = await session.run(CONNECT)
        assert outcome.exit_code == 1
        assert "refused" in session.printed

    in_a_box(work)


def test_folders_are_copied_out_whole_with_plain_modes(layer, tmp_path):
    from cloche.linux.gathering import TreeCopy

    target = tmp_path / "copy"
    target.mkdir()

    async def work(session):
        await session.run("import os; os.chmod('node_modules/pkg/index.js', 0o4777)")
        counts = TreeCopy(limit_bytes=1 << 20, limit_count=100)
        descriptor = os.open(target, os.O_RDONLY)
        try:
            await session.box.copy_folders(["node_modules", "missing"], descriptor, counts)
        finally:
            os.close(descriptor)
        return counts

    counts = in_a_box(work, layers=[layer])
    assert counts.entries_count == 6 - 1
    assert (target / "node_modules/link").readlink().name == "pkg"
    assert (target / "node_modules/pkg/index.js").stat().st_mode & 0o7777 == 0o755
    assert (target / "node_modules/pkg/lib/tool.sh").stat().st_mode & 0o7777 == 0o755
    assert not (target / "missing").exists()
