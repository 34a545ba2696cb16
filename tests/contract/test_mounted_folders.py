"""Host folders in a box: read-only unless said otherwise, and never a way out."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cloche import InvalidRequestError, Mount

pytestmark = pytest.mark.kinds("process")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A host folder that any uid may read."""
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_uid == os.geteuid() and parent != Path(parent.anchor):
            parent.chmod(parent.stat().st_mode | 0o055)
    data = tmp_path / "data"
    (data / "deep").mkdir(parents=True)
    (data / "a.txt").write_text("from the host")
    (data / "deep/b.txt").write_text("deeper")
    return data


def python(sandbox: Any, code: str, *mounts: Mount, **fields: Any) -> Any:
    return sandbox.run(code, language="python", mounts=mounts, **fields)


def test_a_mounted_folder_can_be_read(sandbox: Any, folder: Path) -> None:
    code = "[open('data/a.txt').read(), open('/workspace/data/deep/b.txt').read()]"
    result = python(sandbox, code, Mount(str(folder), "data"))
    assert result.value == ["from the host", "deeper"], result.error
    code = "await Bun.file('some/where/a.txt').text()"
    result = sandbox.run(code, mounts=[Mount(str(folder), "some/where")])
    assert result.value == "from the host", result.error


def test_a_folder_below_one_that_only_the_caller_may_enter_can_be_mounted(
    sandbox: Any, folder: Path
) -> None:
    folder.parent.chmod(0o700)
    result = python(sandbox, "open('data/a.txt').read()", Mount(str(folder), "data"))
    assert result.value == "from the host", result.error


def test_more_folders_than_may_be_mounted_are_refused(sandbox: Any, folder: Path) -> None:
    mounts = [Mount(str(folder), f"at{number}") for number in range(9)]
    with pytest.raises(InvalidRequestError, match="at most 8 folders"):
        python(sandbox, "1", *mounts)
    result = python(sandbox, "import os; len(os.listdir('.'))", *mounts[:8])
    assert result.value == 8, result.error


@pytest.mark.parametrize("fields", [{}, {"allow_fs": True}, {"files": {"mine": "x"}}])
def test_a_mounted_folder_is_read_only(sandbox: Any, folder: Path, fields: dict[str, Any]) -> None:
    code = (
        "import os\n"
        "errors = []\n"
        "for act in (lambda: open('data/a.txt', 'w'), lambda: open('data/new', 'w'),\n"
        "            lambda: os.remove('data/a.txt'), lambda: os.mkdir('data/d'),\n"
        "            lambda: os.rename('data/a.txt', 'data/c.txt'),\n"
        "            lambda: os.chmod('data/a.txt', 0o777), lambda: os.symlink('x', 'data/l'),\n"
        "            lambda: os.utime('data/a.txt'), lambda: open('data/deep/new', 'w')):\n"
        "    try:\n"
        "        act()\n"
        "    except OSError as error:\n"
        "        errors.append(error.strerror)\n"
        "errors"
    )
    result = python(sandbox, code, Mount(str(folder), "data"), **fields)
    assert len(result.value) == 9
    assert (folder / "a.txt").read_text() == "from the host"
    assert sorted(path.name for path in folder.iterdir()) == ["a.txt", "deep"]


def test_a_mount_that_is_unsafely_writable_is_written(sandbox: Any, folder: Path) -> None:
    folder.chmod(0o777)
    code = "open('data/new', 'w').write('from the box')"
    result = python(sandbox, code, Mount(str(folder), "data", unsafe_writable=True))
    assert result.ok, result.error
    assert (folder / "new").read_text() == "from the box"


def test_a_mount_makes_nothing_else_writable(sandbox: Any, folder: Path) -> None:
    for mount in (Mount(str(folder), "data"), Mount(str(folder), "data", unsafe_writable=True)):
        for place in ("/workspace/x", "/tmp/x", "/x", "/workspace/data/../x"):
            assert not python(sandbox, f"open({place!r}, 'w')", mount).ok


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path has at most 107 bytes
        try:
            listener.bind(path.name)
        finally:
            os.chdir(here)


@pytest.mark.parametrize("place", ["", "deep/"])
@pytest.mark.parametrize(
    ("make", "kind_of_file"), [(make_socket, "socket"), (os.mkfifo, "FIFO")], ids=["socket", "fifo"]
)
def test_a_folder_that_holds_a_way_out_is_refused(
    sandbox: Any, folder: Path, make: Callable[[Path], None], kind_of_file: str, place: str
) -> None:
    make(folder / f"{place}odd")
    for unsafe_writable in (False, True):
        with pytest.raises(InvalidRequestError, match=kind_of_file) as caught:
            python(sandbox, "1", Mount(str(folder), "data", unsafe_writable))
        assert "odd" in caught.value.message and caught.value.retry_safe


@pytest.mark.parametrize(
    ("host_path", "told"),
    [("/no/such/folder", "No such file"), ("/etc/passwd", "no folder"), ("/dev/null", "no folder")],
)
def test_what_is_no_folder_is_refused(sandbox: Any, host_path: str, told: str) -> None:
    with pytest.raises(InvalidRequestError, match=told):
        python(sandbox, "1", Mount(host_path, "data"))


def test_links_out_of_a_mounted_folder_lead_nowhere_on_the_host(
    sandbox: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("secret")
    (folder / "out").symlink_to(tmp_path / "secret")
    (folder / "up").symlink_to("../secret")
    assert (folder / "up").read_text() == "secret"  # on the host they do
    for name in ("out", "up", "../secret"):
        result = python(sandbox, f"open('data/{name}').read()", Mount(str(folder), "data"))
        assert "No such file" in result.error


@pytest.mark.parametrize(
    ("mounts", "files"),
    [
        (["data", "data"], {}),
        (["data"], {"data": "a file in its place"}),
        (["data"], {"data/a.txt": "a file below it"}),
        (["data", "data/deep"], {}),
        (["data/inner"], {"data": "a file above it"}),
    ],
)
def test_mounts_that_collide_are_refused_or_never_reach_the_host(
    sandbox: Any, folder: Path, mounts: list[str], files: dict[str, str]
) -> None:
    """No mount point and no file is ever made below a mounted folder."""
    given = [Mount(str(folder), place) for place in mounts]
    try:
        result = python(sandbox, "1 + 1", *given, files=files)
    except InvalidRequestError as error:
        assert error.retry_safe
    else:
        assert result.value == 2
    assert (folder / "a.txt").read_text() == "from the host"
    assert sorted(path.name for path in folder.rglob("*")) == ["a.txt", "b.txt", "deep"]


def test_a_program_sees_mounts_too_and_its_own_file_beside_them(sandbox: Any, folder: Path) -> None:
    code = "import os\nprint(sorted(os.listdir('.')), open('data/a.txt').read())"
    result = python(sandbox, code, Mount(str(folder), "data"), mode="program")
    assert result.stdout == "['data', 'main.py'] from the host\n", result.error


def test_collect_does_not_reach_into_a_mounted_folder(sandbox: Any, folder: Path) -> None:
    code = "open('own', 'w').write('x')"
    result = python(sandbox, code, Mount(str(folder), "data"), collect=["**"])
    assert dict(result.files) == {"own": b"x"}
