"""Threat: a guest talks with anything outside its box (threat model: network).

No route, no name, no family of sockets but loopback and private Unix ones leads out. The host
listens on every address it has; the control reaches each listener, the box none.
"""

import json
import socket
import threading
from contextlib import suppress

import pytest

from attack import inside, outside

CONNECTS = """
import json, socket, sys
got = []
for family, host, port in json.loads(sys.argv[1]):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(getattr(socket, family), kind) as attempt:
            attempt.settimeout(0.5)
            try:
                attempt.connect((host, port))
                attempt.send(b"canary")
                got.append([host, kind.name])
            except OSError:
                pass
print(json.dumps(got))
"""
JS_CONNECTS = """
const net = require("node:net"), dgram = require("node:dgram");
const targets = JSON.parse(process.argv[2]);
const tcp = (host, port) => new Promise(done => {
  const it = net.connect({ host, port, timeout: 500 });
  it.on("connect", () => { it.write("canary"); it.end(); done(host); });
  it.on("error", () => done(null));
  it.on("timeout", () => { it.destroy(); done(null); });
});
// The canary hangs up without an answer, which is a connection too.
const web = (host, port) => {
  const url = `http://${host.includes(":") ? `[${host}]` : host}:${port}/`;
  const met = error => (/ECONNRESET|closed/i.test(error.code + error) ? url : null);
  return fetch(url, { signal: AbortSignal.timeout(500) }).then(() => url, met);
};
const all = targets.flatMap(([, host, port]) => [tcp(host, port), web(host, port)]);
Promise.all(all).then(got => {
  console.log(JSON.stringify(got.filter(Boolean)));
  process.exit(0);
});
"""
OUTSIDE_ADDRESSES = """
import json, os, socket
got = []
for name in list(os.environ):
    if name.lower().endswith("_proxy"):
        del os.environ[name]
for family, host in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET, "169.254.169.254"),
                     (socket.AF_INET, "255.255.255.255"), (socket.AF_INET, "224.0.0.1"),
                     (socket.AF_INET6, "2001:db8::1"), (socket.AF_INET6, "ff02::1"),
                     (socket.AF_INET6, "::ffff:192.0.2.1"), (socket.AF_INET6, "64:ff9b::c000:201")):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(family, kind) as attempt:
            attempt.settimeout(0.2)
            try:
                attempt.connect((host, 80))
                got.append([host, kind.name])
            except OSError:
                pass
print(json.dumps(got))
"""
NAMES = """
import json, socket, struct, sys
got = []
for name in ("data-77.canary.test", "example.com", "localhost.localdomain"):
    try:
        got.append(socket.getaddrinfo(name, 80))
    except OSError:
        pass
query = struct.pack(">6H", 7, 256, 1, 0, 0, 0) + b"\\6canary\\4test\\0" + struct.pack(">2H", 1, 1)
for host, port in [("127.0.0.53", 53), ("127.0.0.1", 53), ("127.0.0.1", int(sys.argv[1]))]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.settimeout(0.3)
        try:
            resolver.sendto(query, (host, port))
            resolver.recvfrom(512)
            got.append(port)
        except OSError:
            pass
print(json.dumps(got))
"""


class Canary:
    """Listens on TCP and UDP on one address; counts what arrives."""

    def __init__(self, family, host):
        self.hits = 0
        self.stream = socket.create_server((host, 0), family=family)
        self.port = self.stream.getsockname()[1]
        self.datagrams = socket.socket(family, socket.SOCK_DGRAM)
        self.datagrams.bind((host, self.port))
        self.target = [family.name, host, self.port]
        threading.Thread(target=self.accept, daemon=True).start()
        threading.Thread(target=self.receive, daemon=True).start()

    def accept(self):
        try:
            while True:
                connection, _ = self.stream.accept()
                self.hits += 1
                connection.close()
        except OSError:
            pass

    def receive(self):
        try:
            while self.datagrams.recv(99) != b"stop":
                self.hits += 1
        except OSError:
            pass

    def close(self):
        for end in (self.stream, self.datagrams):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread
            end.close()


def own_addresses():
    """Every address of this host: loopback, and that of its interface, if it has one."""
    found = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks for the route
            found.append((socket.AF_INET, probe.getsockname()[0]))
        except OSError:
            pass
    return found


@pytest.fixture
def canaries():
    found = [Canary(family, host) for family, host in own_addresses()]
    yield found
    for canary in found:
        canary.close()


def targets_of(canaries):
    targets = [canary.target for canary in canaries]
    first = canaries[0].port
    return json.dumps([*targets, ["AF_INET", "0.0.0.0", first], ["AF_INET", "localhost", first]])


@pytest.mark.case("net-01-loopback", "net-02-ignores-proxy-env")
@pytest.mark.parametrize(("language", "code"), [("python", CONNECTS), ("javascript", JS_CONNECTS)])
def test_no_listener_of_the_host_is_reached(shared_sandbox, canaries, language, code):
    targets = targets_of(canaries)
    control = outside(code, targets, language=language)
    assert len(control) >= len(canaries)
    reached = [canary.hits for canary in canaries]
    assert all(reached)
    got = inside(shared_sandbox, code, targets, language=language)
    # Without a listener, a datagram to loopback is taken by the kernel and goes nowhere.
    assert [each for each in got if "SOCK_DGRAM" not in each] == []
    assert [canary.hits for canary in canaries] == reached


@pytest.mark.case("net-02-ignores-proxy-env")
def test_no_address_outside_has_a_route(shared_sandbox):
    # Controls: LOOPBACK shows that sockets work, CONNECTS that these calls connect.
    proxies = {"HTTP_PROXY": "http://127.0.0.1:1", "https_proxy": "http://127.0.0.1:1"}
    assert inside(shared_sandbox, OUTSIDE_ADDRESSES, env=proxies) == []


@pytest.mark.case("net-03-dns-query")
def test_no_name_is_resolved(shared_sandbox):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.bind(("127.0.0.1", 0))
        resolver.settimeout(10)
        port = resolver.getsockname()[1]
        seen = []

        def answer():
            query, sender = resolver.recvfrom(512)
            seen.append(query)
            resolver.sendto(query, sender)

        thread = threading.Thread(target=answer)
        thread.start()
        assert outside(NAMES, str(port))[-1] == port
        thread.join()
        resolver.setblocking(False)
        assert inside(shared_sandbox, NAMES, str(port)) == []
        with pytest.raises(BlockingIOError):
            resolver.recvfrom(512)
        assert len(seen) == 1
