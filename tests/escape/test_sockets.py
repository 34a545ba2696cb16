"""Threat: a socket that needs no route leads out: other families, Unix sockets, descriptors.

`test_network.py` has those that need one.
"""

import os
import socket
import threading

import pytest

from attack import inside, outside

FAMILIES = """
import json, socket
got = []
for family in range(1, 46):
    for kind in (1, 2, 3, 4, 5, 10):
        for protocol in (0, 1, 6, 17, 58, 255, 0x0300):
            try:
                socket.socket(family, kind, protocol).close()
                got.append([family, kind, protocol])
            except OSError:
                pass
print(json.dumps(got))
"""
NETLINK = """
import json, socket, struct
with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as route:
    route.bind((0, 0))
    # RTM_NEWLINK with a dummy device, acknowledged: what comes back is an error number.
    route.send(struct.pack("=IHHIIBxHiII", 32, 16, 0x605, 1, 0, 0, 0, 0, 0, 0))
    answer = route.recv(4096)
    links = []
    route.send(struct.pack("=IHHIIB3x", 20, 18, 0x301, 2, 0, 0))
    data = route.recv(65536)
    while data:
        length, kind = struct.unpack_from("=IH", data)
        if kind == 16:
            links.append(struct.unpack_from("=i", data, 20)[0])
        data = data[(length + 3) & ~3:]
print(json.dumps([struct.unpack_from("=i", answer, 16)[0], len(links)]))
"""
UNIX = """
import array, json, os, socket, sys
got = []
for target in (sys.argv[1], "\\0" + sys.argv[2], "/proc/1/root" + sys.argv[1]):
    with socket.socket(socket.AF_UNIX) as attempt:
        attempt.settimeout(0.5)
        try:
            attempt.connect(target)
            got.append(target.replace("\\0", "@"))
            data, [(level, kind, payload)], *_ = attempt.recvmsg(9, 64)
            passed = array.array("i", payload)[0]
            got.append(os.readlink(f"/proc/self/fd/{passed}"))
        except (OSError, ValueError):
            pass
print(json.dumps(got))
"""
LOOPBACK = """
import json, socket
got = []
for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.create_server((host, 0), family=family) as server:
        with socket.create_connection(server.getsockname()[:2]) as client:
            client.send(b"hello")
            got.append(server.accept()[0].recv(9).decode())
got.append("127.0.0.1" in {each[4][0] for each in socket.getaddrinfo("localhost", 80)})
left, right = socket.socketpair()
left.send(b"pair")
got.append(right.recv(9).decode())
got.append([name for _, name in socket.if_nameindex()])
print(json.dumps(got))
"""


def test_no_family_of_sockets_but_three_can_be_opened(shared_sandbox):
    unix, inet, netlink, inet6 = 1, 2, 16, 10
    control = {tuple(each) for each in outside(FAMILIES)}
    assert {(unix, 1, 0), (inet, 1, 0), (inet6, 2, 0), (netlink, 3, 0)} <= control
    got = {tuple(each) for each in inside(shared_sandbox, FAMILIES)}
    assert {family for family, *_ in got} <= {unix, inet, inet6, netlink}
    assert {protocol for family, _, protocol in got if family == netlink} <= {0}
    # Raw and packet sockets: kind 3 and 10, and kind 5 of the Internet families.
    assert {kind for family, kind, _ in got if family in (inet, inet6)} <= {1, 2}
    assert {1, 2} <= {kind for family, kind, _ in got if family == inet}
    if os.geteuid() == 0:
        assert {3, 10} & {kind for family, kind, _ in control if family in (inet, 17)}


def test_netlink_tells_of_loopback_alone_and_changes_nothing(shared_sandbox):
    error, links_count = inside(shared_sandbox, NETLINK)
    assert error < 0
    assert links_count == 1
    assert outside(NETLINK.replace("0x605", "0x5"))[1] >= 1


@pytest.mark.case("net-05-unix-socket-path", "net-06-abstract-socket")
def test_no_unix_socket_of_the_host_is_reached_nor_a_descriptor_of_it(shared_sandbox, tmp_path):
    path, name = str(tmp_path / "control.sock"), f"cloche-test-{os.getpid()}"
    accepted = []
    with socket.socket(socket.AF_UNIX) as by_path, socket.socket(socket.AF_UNIX) as by_name:
        by_path.bind(path)
        by_name.bind("\0" + name)

        def serve(server):
            try:
                while True:
                    connection, _ = server.accept()
                    accepted.append(server)
                    with connection, open("/etc/passwd") as passed:
                        socket.send_fds(connection, [b"x"], [passed.fileno()])
            except OSError:
                pass

        threads = [threading.Thread(target=serve, args=(each,)) for each in (by_path, by_name)]
        for server, thread in zip((by_path, by_name), threads, strict=True):
            server.listen()
            thread.start()
        control = outside(UNIX, path, name)
        assert [path, "/etc/passwd", "@" + name, "/etc/passwd"] == control[:4]
        count = len(accepted)
        assert inside(shared_sandbox, UNIX, path, name) == []
        assert len(accepted) == count
        for server, thread in zip((by_path, by_name), threads, strict=True):
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


@pytest.mark.case("net-06-abstract-socket")
def test_an_abstract_socket_made_inside_is_not_seen_outside(shared_sandbox):
    name = f"from-inside-{os.getpid()}"
    attempts = []

    def try_now(stream, text):
        for kind, address in (
            (socket.AF_UNIX, "\0" + name),
            (socket.AF_INET, ("127.0.0.1", 45671)),
        ):
            with socket.socket(kind) as attempt:
                attempts.append((text.strip(), attempt.connect_ex(address)))

    code = f"""
import socket, time
server = socket.socket(socket.AF_UNIX); server.bind("\\0{name}"); server.listen()
with socket.create_server(("127.0.0.1", 45671)):
    print("listening", flush=True)
    time.sleep(0.1)
"""
    assert shared_sandbox.run(code, language="python", on_output=try_now).ok
    assert len(attempts) == 2 and all(error != 0 for _, error in attempts)
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as attempt:
        server.bind("\0" + name)
        server.listen()
        assert attempt.connect_ex("\0" + name) == 0


def test_loopback_and_private_unix_sockets_work_inside(shared_sandbox):
    got = inside(shared_sandbox, LOOPBACK)
    assert got == ["hello", "hello", True, "pair", ["lo"]]
