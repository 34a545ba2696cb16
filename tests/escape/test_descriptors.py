"""Threat: a guest inherits a descriptor of the host's (threat model: descriptors)."""

import json
import os
import socket

import pytest

import cloche.sync
from attack import outside

# https://github.com/opencontainers/runc/security/advisories/GHSA-xr7r-f8xq-vfvv
LIST = """
import json, os, stat, sys
found = []
for name in os.listdir("/proc/self/fd"):
    try:
        kind = stat.S_IFMT(os.fstat(int(name)).st_mode)
        found.append([int(name), kind, os.readlink("/proc/self/fd/" + name).partition(":")[0]])
    except OSError:
        pass
    for path in ("etc/passwd", "../../../../../../../.." + sys.argv[1]):
        try:
            os.stat(path, dir_fd=int(name))
            found.append([int(name), "leads to", path])
        except OSError:
            pass
print(json.dumps(found))
"""
PIPE = 0o010000


@pytest.mark.case("esc-15-leaked-fds")
def test_a_guest_holds_its_own_pipes_and_nothing_else(tmp_path):
    marker = tmp_path / "marker"
    marker.touch()
    root = os.open("/", os.O_RDONLY)
    secret = os.open(marker, os.O_RDWR)
    with socket.create_server(("127.0.0.1", 0)) as server:
        leaked = (root, secret, server.fileno())
        for descriptor in leaked:
            os.set_inheritable(descriptor, True)
        try:
            control = outside(LIST, str(marker), close_fds=False)
            assert {root, secret, server.fileno()} <= {each[0] for each in control}
            assert [root, "leads to", "etc/passwd"] in control
            # Its launcher starts while they are inheritable.
            with cloche.sync.create_process_sandbox(language="python") as sandbox:
                result = sandbox.run(LIST, mode="program", args=[str(marker)])
        finally:
            os.close(root)
            os.close(secret)
    assert result.ok, result.stderr
    found = json.loads(result.stdout)
    assert [each for each in found if each[1] == "leads to"] == []
    assert {each[0] for each in found} == {0, 1, 2, 4}
    assert {each[1] for each in found} == {PIPE}


def test_a_runtime_of_javascript_opens_no_folder_and_no_socket_outside(shared_sandbox):
    code = """
const fs = require("node:fs");
return fs.readdirSync("/proc/self/fd").map(name => {
  try { return fs.readlinkSync("/proc/self/fd/" + name); } catch { return null; }
}).filter(it => it && !/^(pipe:|anon_inode:|.dev.(null|urandom)|.proc.|.memfd:request )/.test(it));
"""
    assert shared_sandbox.run(code).value == []


def test_the_memory_file_of_the_request_takes_no_byte_of_the_guests(shared_sandbox):
    code = """
const fs = require("node:fs");
const got = [];
for (const act of [() => fs.writeSync(3, "x", 0), () => fs.ftruncateSync(3, 1 << 20),
                   () => fs.ftruncateSync(3, 0), () => fs.writeFileSync("/proc/self/fd/3", "x")]) {
  try { act(); got.push(String(act)); } catch {}
}
return got;
"""
    # With a stdin it is not run warm, where fd 3 is a pipe of its own.
    assert shared_sandbox.run(code, stdin="x").value == []


@pytest.mark.parametrize("number", [3, 4])
def test_the_channels_of_a_box_pass_no_descriptors(shared_sandbox, number):
    code = f"""
import json, os, socket
try:
    socket.send_fds(socket.socket(fileno={number}), [b"x"], [0])
    told = "sent"
except OSError as error:
    told = os.strerror(error.errno)
os.write(1, json.dumps(told).encode())
os._exit(0)
"""
    result = shared_sandbox.run(code, language="python")
    assert result.stdout in ('"Socket operation on non-socket"', '"Bad file descriptor"')
