"""Facts about other programs and services, against made-up ones."""

import socket
import threading
from contextlib import contextmanager

import pytest

from cloche.linux.facts import Verdict
from cloche.linux.host import CommandResult, Host, run_command
from cloche.linux.probe import probe_host
from cloche.linux.probe_programs import BOOT_SECTOR, BOOTED_EXIT_CODE, DOCKER_SOCKET


@contextmanager
def engine(root, replies: dict[bytes, bytes]):
    """Serves each connection the reply to its target, as Docker Engine would."""
    path = root / DOCKER_SOCKET
    path.parent.mkdir(parents=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        for _ in replies:
            connection, _ = listener.accept()
            with connection:
                target = connection.recv(4096).split(b" ")[1]
                connection.sendall(replies[target])

    thread = threading.Thread(target=serve)
    thread.start()
    yield
    thread.join()
    listener.close()


def reply(body: bytes, status: bytes = b"200 OK") -> bytes:
    return b"HTTP/1.0 " + status + b"\r\nContent-Type: text/plain\r\n\r\n" + body


def docker_of(root):
    return probe_host(Host(root=root))["docker"]


def test_a_docker_engine_that_answers_is_ok_with_its_version(tmp_path):
    version = reply(b'{"Version": "20.10.24", "ApiVersion": "1.41"}')
    with engine(tmp_path, {b"/_ping": reply(b"OK"), b"/version": version}):
        fact = docker_of(tmp_path)
    assert fact.ok
    assert "20.10.24" in fact.evidence


@pytest.mark.parametrize(
    "replies",
    [
        {b"/_ping": reply(b"no", b"500 Oops")},
        {b"/_ping": b"garbage"},
        {b"/_ping": reply(b"OK"), b"/version": reply(b"[" * 5000)},
        {b"/_ping": reply(b"OK"), b"/version": reply(b"[]")},
    ],
)
def test_an_engine_that_answers_nonsense_is_missing(tmp_path, replies):
    with engine(tmp_path, replies):
        fact = docker_of(tmp_path)
    assert fact.verdict is Verdict.MISSING
    assert fact.fix == "systemctl restart docker"


def test_without_an_engine_the_fix_starts_one(tmp_path):
    fact = docker_of(tmp_path)
    assert fact.verdict is Verdict.MISSING
    assert "systemctl start docker" in fact.fix


def test_programs_that_are_not_installed_name_their_package(tmp_path):
    facts = probe_host(Host(root=tmp_path, find_program=lambda name: None))
    assert facts["qemu"].fix == "apt-get install qemu-system-x86"
    assert facts["runsc"].fix == "apt-get install runsc"


def test_a_program_that_does_not_start_is_missing(tmp_path):
    host = Host(
        root=tmp_path,
        find_program=lambda name: f"/opt/{name}",
        run_command=lambda *argv: CommandResult(127, "cannot open shared object"),
    )
    fact = probe_host(host)["runsc"]
    assert fact.verdict is Verdict.MISSING
    assert "cannot open shared object" in fact.evidence


SECTOR_RAN = CommandResult(BOOTED_EXIT_CODE, "")
KERNEL_RAN = CommandResult(0, "SeaBIOS\n[    0.000000] Linux version 6.1.0\n")


def kvm_of(root, qemu: str | None, sector: CommandResult, kernel: CommandResult | None = None):
    """The fact, and what was tried: argument vectors and disks. No kernel in /boot if None."""
    seen = []

    def run(*argv: str) -> CommandResult:
        if "-kernel" in argv:
            assert kernel is not None
            seen.append((argv, b""))
            return kernel
        drive = next(word for word in argv if word.startswith("file="))
        with open(drive.removeprefix("file=").partition(",")[0], "rb") as disk:
            seen.append((argv, disk.read()))
        return sector

    (root / "dev").mkdir()
    (root / "dev/kvm").touch()
    if kernel is not None:
        (root / "boot").mkdir()
        for version in ("5.10.0", "6.1.0"):
            (root / f"boot/vmlinuz-{version}").touch()
    fact = probe_host(Host(root=root, find_program=lambda name: qemu, run_command=run))["kvm"]
    return fact, seen


def test_kvm_is_ok_when_a_boot_sector_and_a_kernel_ran_on_it(tmp_path):
    fact, seen = kvm_of(tmp_path, "/usr/bin/qemu", SECTOR_RAN, KERNEL_RAN)
    assert fact.ok
    (_, disk), (argv, _) = seen
    assert disk == BOOT_SECTOR
    assert len(disk) == 512
    assert all(argv[argv.index("-accel") + 1] == "kvm" for argv, _ in seen)
    assert argv[argv.index("-kernel") + 1] == str(tmp_path / "boot/vmlinuz-6.1.0")


@pytest.mark.parametrize("kernel", [CommandResult(None, "killed"), CommandResult(0, "SeaBIOS")])
def test_kvm_that_runs_a_sector_and_no_kernel_is_missing(tmp_path, kernel):
    fact, _ = kvm_of(tmp_path, "/usr/bin/qemu", SECTOR_RAN, kernel)
    assert fact.verdict is Verdict.MISSING
    assert "vmlinuz-6.1.0 did not boot" in fact.evidence


def test_kvm_without_a_kernel_to_try_is_unknown(tmp_path):
    fact, _ = kvm_of(tmp_path, "/usr/bin/qemu", SECTOR_RAN)
    assert fact.verdict is Verdict.UNKNOWN
    assert "apt-get install linux-image" in fact.fix


@pytest.mark.parametrize("result", [CommandResult(1, "no ioctl"), CommandResult(None, "killed")])
def test_kvm_that_boots_nothing_is_missing(tmp_path, result):
    fact, _ = kvm_of(tmp_path, "/usr/bin/qemu", result)
    assert fact.verdict is Verdict.MISSING
    assert result.output in fact.evidence


def test_kvm_without_qemu_is_unknown(tmp_path):
    fact, seen = kvm_of(tmp_path, None, CommandResult(0, ""))
    assert fact.verdict is Verdict.UNKNOWN
    assert "qemu-system-x86_64 is not installed" in fact.evidence
    assert not seen


def test_kvm_without_its_device_names_the_module(tmp_path):
    fact = probe_host(Host(root=tmp_path))["kvm"]
    assert fact.verdict is Verdict.MISSING
    assert "modprobe kvm" in fact.fix


def test_a_command_is_bounded_in_output_and_reports_how_it_ended():
    assert run_command("/bin/sh", "-c", "echo hi; exit 3") == CommandResult(3, "hi")
    assert run_command("/nonexistent").exit_code is None
    assert len(run_command("/bin/sh", "-c", "yes | head -c 100000").output) <= 4096
