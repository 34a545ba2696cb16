"""Files: what is laid in, what may be written, and what comes back."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Final

from cloche.errors import SandboxErrorCode
from cloche.model.plan import Mount
from cloche.testing.claims import describe, has_code, has_value, holds, is_ok, refused, same
from cloche.testing.subject import Subject, promise

_READ: Final = {
    "javascript": "import fs from 'node:fs'; fs.readFileSync(path, 'utf8')",
    "python": "open(path).read()",
}
_WRITE: Final = {
    "javascript": "import fs from 'node:fs'; fs.writeFileSync(path, 'mine');"
    " fs.readFileSync(path, 'utf8')",
    "python": "with open(path, 'w') as f:\n    f.write('mine')\nopen(path).read()",
}
_LIST: Final = {
    "javascript": "import fs from 'node:fs'; fs.readdirSync(path)",
    "python": "import os\nos.listdir(path)",
}
_FILL: Final = {
    "javascript": "import fs from 'node:fs'; const b = Buffer.alloc(1 << 20);"
    " for (let i = 0; i < 16; i++) fs.appendFileSync('/workspace/big', b); 1",
    "python": "with open('/workspace/big', 'wb') as f:\n    for i in range(16):\n"
    "        f.write(bytes(1 << 20))\n1",
}


@promise(1401, needs=("files",))
async def nothing_is_writable_unless_allowed(subject: Subject) -> None:
    """Without `allow_fs` no place can be written, and the error says what would help.

    "False: no host file visible, nothing writable (errors say which option would help)."
    """
    for path in ("/workspace/x", "/tmp/x", "/x", "/etc/x", "/dev/shm/x", "/usr/x"):
        async for result in subject.each(_WRITE, context={"path": path}):
            has_code(result, SandboxErrorCode.EXECUTION_ERROR)
        if path == "/workspace/x":
            holds("allow_fs" in (result.error or ""), describe(result))


@promise(1402, needs=("files",))
async def what_is_allowed_is_private_and_gone_after_the_run(subject: Subject) -> None:
    """With `allow_fs` /workspace and /tmp are writable, empty at first, and gone afterwards.

    "True: a private `/workspace` and `/tmp`, capped in bytes and inodes, gone after the run."
    """
    for place in ("/workspace", "/tmp"):
        context = {"path": f"{place}/mine"}
        async for result in subject.each(_WRITE, context=context, allow_fs=True):
            has_value(result, "mine")
        async for result in subject.each(_LIST, context={"path": place}, allow_fs=True):
            has_value(result, [])
        holds(not Path(place, "mine").exists() or place == "/tmp", "it is on the host")
    for path in ("/etc/x", "/usr/x", "/x"):
        async for result in subject.each(_WRITE, context={"path": path}, allow_fs=True):
            has_code(result, SandboxErrorCode.EXECUTION_ERROR)


@promise(1403, needs=("files",))
async def what_is_written_has_a_limit(subject: Subject) -> None:
    """`scratch_limit_mb` holds; a run may write as much, and no more.

    "`scratch_limit_mb`: 64: … capped in bytes and inodes."
    """
    async for result in subject.each(_FILL, allow_fs=True, scratch_limit_mb=4):
        holds(not result.ok, f"16 MiB in 4: {describe(result)}")
    fields = {"allow_fs": True, "scratch_limit_mb": 32, "memory_limit_mb": 256}
    async for result in subject.each(_FILL, **fields):
        has_value(result, 1)


@promise(1404, needs=("files",))
async def no_file_of_the_host_is_visible(subject: Subject) -> None:
    """A file of the host cannot be read, by its path or by any way around.

    "False: no host file visible, nothing writable."
    """
    with tempfile.NamedTemporaryFile("w", prefix="cloche-conformance-") as file:
        file.write("host")
        file.flush()
        context, files = {"path": "/workspace/own"}, {"own": "the run's"}
        async for result in subject.each(_READ, context=context, files=files):
            has_value(result, "the run's")
        for path in (file.name, f"/proc/1/root{file.name}", f"/proc/self/root{file.name}"):
            async for result in subject.each(_READ, context={"path": path}, allow_fs=True):
                has_code(result, SandboxErrorCode.EXECUTION_ERROR)


@promise(1405, needs=("files",))
async def files_are_laid_in_and_come_back(subject: Subject) -> None:
    """`files` are there as text and bytes; what matches `collect` is in `result.files`.

    "`files`, `collect`: path → text or bytes laid into `/workspace`; globs whose files come back
    in `result.files` (both imply `allow_fs`)."
    """
    files = {"in/a.txt": "é", "b.bin": b"\xff\xfe"}
    codes = {
        "javascript": "import fs from 'node:fs'; fs.mkdirSync('out');"
        " fs.writeFileSync('out/copy.txt', fs.readFileSync('in/a.txt'));"
        " fs.writeFileSync('out/other', 'x'); fs.readFileSync('b.bin').length",
        "python": "import os\nos.mkdir('out')\nopen('out/copy.txt', 'w').write("
        "open('in/a.txt').read())\nopen('out/other', 'w').write('x')\n"
        "len(open('b.bin', 'rb').read())",
    }
    async for result in subject.each(codes, files=files, collect=["out/*.txt", "*.bin"]):
        has_value(result, 2)
        expected = {"out/copy.txt": "é".encode(), "b.bin": b"\xff\xfe"}
        same(dict(result.files), expected, "files")


@promise(1406, needs=("files",))
async def a_collected_link_leads_nowhere(subject: Subject) -> None:
    """Only regular files come back: no link is followed.

    "globs whose files come back in `result.files`."
    """
    codes = {
        "javascript": "import fs from 'node:fs'; fs.symlinkSync('/etc/passwd', 'out');"
        " fs.symlinkSync('/', 'up'); fs.writeFileSync('real', 'x'); 1",
        "python": "import os\nos.symlink('/etc/passwd', 'out')\nos.symlink('/', 'up')\n"
        "open('real', 'w').write('x')\n1",
    }
    async for result in subject.each(codes, collect=["*", "up/etc/*"]):
        is_ok(result)
        same(dict(result.files), {"real": b"x"}, "files")


@promise(1407, needs=("files",))
async def a_mounted_folder_is_read_only(subject: Subject) -> None:
    """A host folder can be seen below /workspace, and not written unless it says `unsafe`.

    "Mounts: host folders, read-only unless `unsafe_writable`; refused when they hold sockets or
    FIFOs."
    """
    with tempfile.TemporaryDirectory(prefix="cloche-conformance-") as name:
        folder = Path(name, "data")
        folder.mkdir()
        for each in (Path(name), folder):
            each.chmod(0o755)
        (folder / "a.txt").write_text("host")
        mounts = [Mount(str(folder), "data")]
        context = {"path": "/workspace/data/a.txt"}
        async for result in subject.each(_READ, context=context, mounts=mounts):
            has_value(result, "host")
        async for result in subject.each(_WRITE, context=context, mounts=mounts):
            has_code(result, SandboxErrorCode.EXECUTION_ERROR)
        same((folder / "a.txt").read_text(), "host", "the host's file")
        os.mkfifo(folder / "odd")
        with refused("odd", "FIFO"):
            await subject.run("1", mounts=mounts)
        with refused("mounts"):
            await subject.run("1", mounts=[Mount(str(folder / "a.txt"), "data")])
