"""Facts about other sandboxes' programs and services: Docker Engine, runsc, QEMU and KVM."""

import json
import os
import socket
import tempfile
from functools import partial
from pathlib import Path
from typing import Final

from cloche.linux.facts import Fact, Probe, Verdict
from cloche.linux.host import Host

DOCKER_SOCKET: Final = "var/run/docker.sock"
SOCKET_TIMEOUT_S: Final = 2
MAX_REPLY_BYTES: Final = 1 << 20

QEMU: Final = "qemu-system-x86_64"

# A boot sector that writes 0x10 to the debug-exit device, which ends QEMU with (0x10 << 1) | 1.
# mov al, 0x10; out 0xf4, al; hlt; jmp to the hlt
BOOT_SECTOR: Final = b"\xb0\x10\xe6\xf4\xf4\xeb\xfd".ljust(510, b"\0") + b"\x55\xaa"
BOOTED_EXIT_CODE: Final = 0x10 << 1 | 1
_BARE_MACHINE: Final = ("-accel", "kvm", "-display", "none", "-nodefaults", "-no-reboot")
_FIX_KVM: Final = (
    "use a host with full (nested) virtualisation; without it, software emulation is used"
)


def probes(host: Host) -> dict[str, Probe]:
    """The probes of this module by the names of their facts."""
    return {
        "docker": partial(probe_docker, host),
        "runsc": partial(probe_program, host, "runsc", "runsc", "docker backend with gVisor"),
        "qemu": partial(probe_program, host, "qemu", QEMU, "qemu backend"),
        "kvm": partial(probe_kvm, host),
    }


def probe_docker(host: Host) -> Fact:
    """Asks Docker Engine for its version over its socket."""
    path, needed_by = host.root / DOCKER_SOCKET, ("docker backend",)
    try:
        if _get(path, "/_ping") != b"OK":
            raise ValueError("it does not answer the ping")
        version = json.loads(_get(path, "/version"))["Version"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        if isinstance(error, FileNotFoundError | ConnectionRefusedError):
            fix = "systemctl start docker (Debian: apt-get install docker.io)"
        elif isinstance(error, PermissionError):
            fix = 'usermod -aG docker "$USER", and log in again; the group is as mighty as root'
        else:
            fix = "systemctl restart docker"
        return Fact("docker", Verdict.MISSING, f"{path}: {error}", fix, needed_by)
    return Fact("docker", Verdict.OK, f"Docker Engine {version} on {path}", needed_by=needed_by)


def _get(path: Path, target: str) -> bytes:
    """The body of a reply of 200. HTTP/1.0, so that the reply ends with the connection."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(SOCKET_TIMEOUT_S)
        connection.connect(str(path))
        connection.sendall(f"GET {target} HTTP/1.0\r\nHost: docker\r\n\r\n".encode())
        reply = b""
        while chunk := connection.recv(65536):
            reply += chunk
            if len(reply) > MAX_REPLY_BYTES:
                raise ValueError("the reply is too long")
    head, _, body = reply.partition(b"\r\n\r\n")
    if head.split(b" ", 2)[1:2] != [b"200"]:
        raise ValueError(f"it answers {head[:40].decode(errors='replace')!r}")
    return body


def probe_program(host: Host, name: str, program: str, needed_by: str) -> Fact:
    """Whether a program is on the path and starts."""
    path = host.find_program(program)
    if path is None:
        evidence = f"{program} is not on the path"
        packages = {"qemu": "qemu-system-x86", "runsc": "runsc"}
        fix = f"apt-get install {packages[name]}"
        return Fact(name, Verdict.MISSING, evidence, fix, (needed_by,))
    result = host.run_command(path, "--version")
    first_line = result.output.partition("\n")[0]
    if result.exit_code != 0:
        evidence = f"{path} --version failed: {first_line}"
        return Fact(name, Verdict.MISSING, evidence, f"reinstall {program}", (needed_by,))
    return Fact(name, Verdict.OK, f"{path}: {first_line}", needed_by=(needed_by,))


def probe_kvm(host: Host) -> Fact:
    """Whether a machine really boots on KVM.

    Some hosts have the device and boot nothing on it; some (nested ones) run a boot sector and hang
    in a kernel. So both are tried.
    """
    name, needed_by = "kvm", ("qemu backend at full speed",)
    device = host.root / "dev/kvm"
    if not device.exists():
        evidence = "there is no /dev/kvm"
        fix = "modprobe kvm_intel (or kvm_amd); in a virtual machine, enable nested virtualisation"
        return Fact(name, Verdict.MISSING, evidence, fix, needed_by)
    if not os.access(device, os.R_OK | os.W_OK):
        evidence = "/dev/kvm cannot be opened for reading and writing by this user"
        fix = 'usermod -aG kvm "$USER", and log in again'
        return Fact(name, Verdict.MISSING, evidence, fix, needed_by)
    qemu = host.find_program(QEMU)
    if qemu is None:
        evidence = f"/dev/kvm is there, but {QEMU} is not installed, so nothing was booted on it"
        return Fact(name, Verdict.UNKNOWN, evidence, "apt-get install qemu-system-x86", needed_by)
    with tempfile.NamedTemporaryFile(prefix="cloche-boot-", buffering=0) as disk:
        disk.write(BOOT_SECTOR)
        result = host.run_command(
            *(qemu, *_BARE_MACHINE, "-m", "16"),
            *("-drive", f"file={disk.name},format=raw,if=ide,snapshot=on"),
            *("-device", "isa-debug-exit,iobase=0xf4,iosize=0x04"),
        )
    if result.exit_code != BOOTED_EXIT_CODE:
        first_line = result.output.partition("\n")[0] or f"exit code {result.exit_code}"
        evidence = f"{qemu} did not boot a test sector on it: {first_line}"
        return Fact(name, Verdict.MISSING, evidence, _FIX_KVM, needed_by)
    kernel = max((host.root / "boot").glob("vmlinuz-*"), default=None)
    if kernel is None:
        evidence = "a test sector ran on it, but there is no kernel in /boot to try"
        fix = "apt-get install linux-image-cloud-amd64"
        return Fact(name, Verdict.UNKNOWN, evidence, fix, needed_by)
    # With no root to mount and panic=-1 it restarts, which -no-reboot turns into an end.
    result = host.run_command(
        *(qemu, *_BARE_MACHINE, "-cpu", "max", "-m", "256", "-serial", "stdio"),
        *("-kernel", str(kernel), "-append", "console=ttyS0 panic=-1"),
    )
    if result.exit_code == 0 and "Linux version" in result.output:
        return Fact(name, Verdict.OK, f"{qemu} booted {kernel.name} on it", needed_by=needed_by)
    evidence = f"a test sector ran on it, but {kernel.name} did not boot"
    return Fact(name, Verdict.MISSING, evidence, _FIX_KVM, needed_by)
