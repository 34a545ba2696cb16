"""A box with egress reaches nothing but what its rules name, whatever it sends."""

import asyncio
import json
import shutil
import socket
import threading
import time
from contextlib import suppress

import pytest

from attack import outside as run_outside
from cloche.egress import dialling, names, transparent
from cloche.egress.rules import EgressRules, read_rules
from egress_site import PUBLIC, Outside, make_certificate, networked_box
from needs import BOX, needs

pytestmark = needs(*BOX, "runtime-python")

# Prints, for each target, what the far side says, or nothing.
REACH = """
import json, socket, sys
got = []
for family, host, port in json.loads(sys.argv[1]):
    try:
        with socket.socket(getattr(socket, family)) as attempt:
            attempt.settimeout(2)
            attempt.connect((host, port))
            attempt.sendall(b"hello")
            if said := attempt.recv(99):
                got.append([host, port, said.decode()])
    except OSError:
        pass
print(json.dumps(got))
"""


class Canary:
    """Greets whoever connects, on one address of this host; counts them."""

    def __init__(self, family, host):
        self.hits = 0
        self.listener = socket.create_server((host, 0), family=family)
        self.target = [family.name, host, self.listener.getsockname()[1]]
        self.thread = threading.Thread(target=self.greet)
        self.thread.start()

    def greet(self):
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                self.hits += 1
                connection.sendall(b"canary")
                connection.close()

    def close(self):
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        self.thread.join()


def host_addresses():
    found = [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        with suppress(OSError):
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks for the route
            found.append((socket.AF_INET, probe.getsockname()[0]))
    return found


@pytest.fixture
def canaries():
    found = [Canary(family, host) for family, host in host_addresses()]
    yield found
    for canary in found:
        canary.close()


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("certificate")
    return make_certificate(folder, "api.example.test", "other.test")


class Straight(Outside):
    """Names resolve as they are told to; what passes the checks is really connected to."""

    async def dial(self, address, port):
        self.dials.append((address, port))
        return await dialling.dial(address, port)


def run(code, *args, there=None, **fields):
    """Runs a program in a box; returns (the JSON that it prints, outside, site)."""

    async def work():
        place = there or Outside(api_example_test=[(PUBLIC,)])
        async with networked_box(place, code, **fields) as site:
            printed = await site.run(*args)
            assert printed, site.errors
            return json.loads(printed), place, site

    return asyncio.run(work())


@pytest.mark.case("net-01-loopback", "net-02-ignores-proxy-env")
@pytest.mark.parametrize("any_public", [False, True])
def test_no_service_of_the_host_is_reached_on_a_port_that_is_caught(canaries, any_public):
    targets = [canary.target for canary in canaries]
    ports = [target[2] for target in targets]
    targets += [["AF_INET", "0.0.0.0", ports[0]], ["AF_INET6", "::ffff:127.0.0.1", ports[0]]]
    targets += [["AF_INET", "localhost", ports[0]], ["AF_INET", "127.0.0.2", ports[0]]]
    control = run_outside(REACH, json.dumps(targets))
    assert len(control) >= len(canaries) + 2
    reached = [canary.hits for canary in canaries]
    assert all(reached)
    rules = [f"api.example.test:{port}" for port in ports]
    got, there, site = run(
        REACH, json.dumps(targets), there=Straight(), hosts=rules, any_public=any_public
    )
    assert got == []
    assert [canary.hits for canary in canaries] == reached
    assert there.dials == []
    assert any("loopback address" in each for each in site.egress.denied)


ADDRESSES = [
    "127.0.0.1", "10.0.0.1", "172.16.0.1", "192.168.1.1", "100.64.0.1", "169.254.169.254",
    "168.63.129.16", "100.100.100.200", "0.0.0.0", "192.0.2.1", "198.18.0.1", "240.0.0.1",
    "240.0.0.77", "127.1", "0x7f000001", "2130706433", "0177.0.0.1", "0", "8.8.8.8", PUBLIC,
]  # fmt: skip


@pytest.mark.case("net-02-ignores-proxy-env", "net-07-connect-ip-forms")
def test_no_bare_address_is_connected_to_where_names_are_allowed():
    targets = [["AF_INET", address, 80] for address in ADDRESSES]
    targets += [["AF_INET6", f"::ffff:{PUBLIC}", 80], ["AF_INET6", "2606:4700::1111", 80]]
    targets += [["AF_INET", "224.0.0.1", 80], ["AF_INET", "255.255.255.255", 80]]

    async def work():
        there = Outside(api_example_test=[(PUBLIC,)])
        await there.serve(80)
        async with networked_box(there, REACH, hosts=["api.example.test"]) as site:
            return json.loads(await site.run(json.dumps(targets))), there, site.egress.denied

    got, there, denied = asyncio.run(work())
    assert got == [] and there.dials == [] and there.lookups == []
    assert f"{PUBLIC}:80 (not in allow_hosts)" in denied
    assert "169.254.169.254:80 (cloud metadata address)" in denied
    assert "240.0.0.77:80 (reserved address)" in denied


REPEAT = """
import json, socket
got = []
for _ in range(5):
    try:
        s = socket.create_connection(("rebind.test", 80), 5)
        s.sendall(b"hello")
        got.append(s.recv(99).decode())
    except OSError as error:
        got.append(type(error).__name__)
print(json.dumps(got))
"""


@pytest.mark.case("net-12-rebinding")
def test_a_name_that_comes_to_point_inside_is_not_looked_up_again():
    async def work(answers):
        there = Outside(rebind_test=answers)

        async def greet(reader, writer):
            await reader.read(9)
            writer.write(b"public")
            writer.close()

        await there.serve(80, greet)
        async with networked_box(there, REPEAT, hosts=["rebind.test"]) as site:
            return json.loads(await site.run()), there, site.egress.denied

    # Control: the second look-up would have told another address.
    inside = [("127.0.0.1",), ("::1",), ("169.254.169.254",)]
    got, there, _ = asyncio.run(work([(PUBLIC,), *inside]))
    assert got == ["public"] * 5
    assert there.dials == [(PUBLIC, 80)] * 5 and there.lookups == ["rebind.test"]
    got, there, denied = asyncio.run(work([inside[2], (PUBLIC,)]))
    assert got == ["ConnectionResetError"] * 5 and there.dials == []
    assert denied == ("rebind.test:80 (cloud metadata address 169.254.169.254)",)


def test_of_several_addresses_only_public_ones_are_tried():
    mixed = ("10.0.0.1", "::1", "64:ff9b::7f00:1", PUBLIC, "fd00:ec2::254")
    _, there, _ = run(REPEAT, there=Outside(rebind_test=[mixed]), hosts=["rebind.test"])
    assert set(there.dials) == {(PUBLIC, 80)}


TLS = """
import json, socket, ssl, sys
first, name, trick = sys.argv[1:]
context = ssl.create_default_context()
context.check_hostname = False
context.verify_mode = ssl.CERT_NONE
into, out = ssl.MemoryBIO(), ssl.MemoryBIO()
client = context.wrap_bio(into, out, server_hostname=name or None)
try:
    client.do_handshake()
except ssl.SSLWantReadError:
    pass
hello = out.read()
if trick == "ech":
    # One more extension: encrypted_client_hello.
    body = bytearray(hello[5:])
    at = 4 + 2 + 32
    at += 1 + body[at]
    at += 2 + int.from_bytes(body[at:at + 2], "big")
    at += 1 + body[at]
    body += b"\\xfe\\x0d\\0\\0"
    body[at:at + 2] = (int.from_bytes(body[at:at + 2], "big") + 4).to_bytes(2, "big")
    body[1:4] = (len(body) - 4).to_bytes(3, "big")
    hello = hello[:3] + len(body).to_bytes(2, "big") + bytes(body)
if trick == "plain":
    hello = b"GET / HTTP/1.1\\r\\nHost: api.example.test\\r\\n\\r\\n"
if trick == "twice":
    hello = hello + hello.replace(b"api.example.test", b"evi.example.test")
host, port = first.rsplit(":", 1)
got = None
try:
    s = socket.create_connection((host, int(port)), 5)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    step = 1 if trick == "bytes" else len(hello)
    for at in range(0, len(hello), step):
        s.sendall(hello[at:at + step])
    while True:
        data = s.recv(65536)
        if not data:
            got = got or "ended"
            break
        got = "TLS UP" if data[0] == 22 else "alert" if data[0] == 21 else "other"
        break
except OSError as error:
    got = type(error).__name__
print(json.dumps(got))
"""


@pytest.mark.case("net-10-sni-vs-connect")
@pytest.mark.parametrize(
    ("name", "trick", "why"),
    [
        ("api.example.test", "", None),
        ("api.example.test", "bytes", None),
        ("API.example.TEST", "", None),
        ("other.test", "", "TLS asks for other.test"),
        ("other.test", "bytes", "TLS asks for other.test"),
        ("api.example.test.other.test", "", "TLS asks for api.example.test.other.test"),
        ("", "", "TLS names no server (no SNI)"),
        ("api.example.test", "ech", "TLS hides its server name (ECH)"),
        ("other.test", "plain", "no TLS"),
    ],
)
@pytest.mark.parametrize("port", [443, 9443])
def test_tls_must_name_the_host_that_was_asked_for(certificate, port, name, trick, why):
    async def work():
        there = Outside(api_example_test=[(PUBLIC,)])
        await there.serve(port, tls=certificate)
        hosts = [f"api.example.test:{port}"]
        async with networked_box(there, TLS, hosts=hosts) as site:
            printed = await site.run(f"api.example.test:{port}", name, trick)
            assert printed, site.errors
            return json.loads(printed), there, site.egress.denied

    got, there, denied = asyncio.run(work())
    if why is None:
        assert (got, denied) == ("TLS UP", ())
    elif trick == "plain" and port != 443:
        # On a named port it may be any protocol; this server does not speak that one.
        assert got != "TLS UP"
    else:
        assert got == "ConnectionResetError"
        assert denied == (f"api.example.test:{port} ({why})",)
        assert port == 9443 or there.dials == []


DATAGRAMS = """
import errno, json, socket
got = []
for family, host in ((socket.AF_INET, "8.8.8.8"), (socket.AF_INET, "169.254.169.254"),
                     (socket.AF_INET, "240.0.0.1"), (socket.AF_INET6, "2606:4700::1111"),
                     (socket.AF_INET6, "ff02::fb"), (socket.AF_INET, "224.0.0.251"),
                     (socket.AF_INET, "255.255.255.255")):
    for port in (443, 53, 80, 123):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as attempt:
                attempt.settimeout(0.2)
                attempt.connect((host, port))
                attempt.send(b"out")
                got.append([host, port, attempt.recv(99).decode("latin-1")])
        except OSError:
            pass
for family in (socket.AF_INET, socket.AF_INET6):
    for kind, protocol in ((socket.SOCK_RAW, 1), (socket.SOCK_RAW, 6), (socket.SOCK_DGRAM, 1),
                           (socket.SOCK_STREAM, 132), (socket.SOCK_RAW, 255)):
        try:
            socket.socket(family, kind, protocol).close()
            got.append([family, kind, protocol])
        except OSError:
            pass
try:
    socket.socket(socket.AF_PACKET, socket.SOCK_RAW).close()
    got.append("packet")
except OSError:
    pass
local = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
local.bind(("127.0.0.1", 0))
local.sendto(b"control", local.getsockname())
print(json.dumps([local.recv(9).decode(), got]))
"""


def test_no_datagram_and_no_raw_packet_leaves():
    (control, got), there, _ = run(DATAGRAMS, any_public=True)
    assert control == "control" and got == []
    assert there.dials == [] and there.lookups == []


ROUTES = """
import json, socket, struct
# What init did: a route. A guest has no right to change one.
route = struct.pack("=8BI", 2, 32, 0, 0, 254, 4, 0, 7, 0)
body = route + struct.pack("=HH4s", 8, 1, socket.inet_aton("8.8.8.8"))
kernel = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
kernel.send(struct.pack("=IHHII", 16 + len(body), 24, 0x405, 1, 0) + body)
error = struct.unpack_from("=i", kernel.recv(4096), 16)[0]
got = []
for address, port in (("0.0.0.0", 80), ("127.0.0.1", 80), ("240.0.0.1", 80), ("127.0.0.1", 53)):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        s = socket.socket(socket.AF_INET, kind)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        try:
            s.bind((address, port))
            if kind == socket.SOCK_STREAM:
                s.listen()
            got.append([address, port, kind])
        except OSError:
            pass
print(json.dumps([error, got]))
"""


def test_a_box_changes_no_route_and_takes_no_socket_over():
    (error, taken), _, _ = run(ROUTES, hosts=["api.example.test"])
    assert error == -1  # EPERM
    assert taken == []


INSIDE = """
import json, socket, threading
server = socket.create_server(("127.0.0.1", 0))
port = server.getsockname()[1]
got = []
def answer():
    for _ in range(2):
        s, _ = server.accept()
        s.sendall(b"inside"); s.close()
threading.Thread(target=answer, daemon=True).start()
for host in ("127.0.0.1", "localhost"):
    got.append(socket.create_connection((host, port), 2).recv(9).decode())
for host, other in (("127.0.0.1", 80), ("api.example.test", port), ("api.example.test", 8081),
                    ("8.8.8.8", 22)):
    try:
        s = socket.create_connection((host, other), 2)
        s.sendall(b"x")
        got.append(s.recv(9).decode())
    except OSError as error:
        got.append(type(error).__name__)
print(json.dumps(got))
"""


def test_the_boxs_own_loopback_stays_its_own_and_other_ports_are_refused_by_its_kernel():
    got, there, site = run(INSIDE, hosts=["api.example.test"])
    refused = ["ConnectionRefusedError"] * 3
    assert got == ["inside", "inside", "ConnectionResetError", *refused]
    assert there.dials == []
    assert site.egress.denied == ("127.0.0.1:80 (loopback address)",)


NAMES = """
import json, socket, struct
got = []
for name in ("data-5ec4e7.canary.test", "example.com", "xapi.example.test", "api.example.test.x"):
    try:
        got.append(socket.getaddrinfo(name, 80))
    except OSError:
        pass
wire = b"\\6canary\\4test\\0" + struct.pack(">2H", 1, 1)
query = struct.pack(">6H", 7, 256, 1, 0, 0, 0) + wire
for host in ("127.0.0.53", "8.8.8.8", "169.254.169.253"):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as resolver:
        resolver.settimeout(0.3)
        try:
            resolver.sendto(query, (host, 53))
            got.append([host, resolver.recvfrom(512)[0].hex()])
        except OSError:
            pass
print(json.dumps([socket.gethostbyname("api.example.test"), got]))
"""


@pytest.mark.case("net-03-dns-query")
def test_no_name_of_a_question_is_looked_up_anywhere():
    (control, got), there, site = run(NAMES, hosts=["api.example.test"])
    assert control == "240.0.0.1" and got == []
    assert there.lookups == []  # not even the allowed one: it was not connected to
    assert "data-5ec4e7.canary.test (not in allow_hosts)" in site.egress.denied


FLOOD = """
import json, os, random, socket, struct, time
random.seed(7)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.setblocking(False)
good = b"\\1\\0\\0\\1\\0\\0\\0\\0\\0\\0"
until = time.monotonic() + 1.5
sent = 0
while time.monotonic() < until:
    name = b"".join(b"\\4%04x" % random.getrandbits(16) for _ in range(3)) + b"\\0\\0\\1\\0\\1"
    for packet in (os.urandom(random.randrange(600)), b"ab" + good + name, b"", b"x" * 9000,
                   b"ab" + good + b"\\xc0\\x0c", b"\\xff" * 512):
        try:
            s.sendto(packet, ("127.0.0.1", 53)); sent += 1
        except OSError:
            pass
time.sleep(0.5)
print(json.dumps([sent, socket.gethostbyname("api.example.test")]))
"""


def test_of_a_flood_of_questions_few_are_read_and_the_name_server_lives_on(monkeypatch):
    read = []

    def count(query, find):
        read.append(query)
        return names.answer(query, find)

    monkeypatch.setattr(transparent, "answer", count)

    async def work():
        async with networked_box(Outside(), FLOOD, hosts=["api.example.test"]) as site:
            started = time.monotonic()
            printed = json.loads(await site.run())
            return printed, time.monotonic() - started, site.egress

    (sent, address), elapsed_s, egress = asyncio.run(work())
    assert address.startswith("240.")
    most = transparent._QUESTIONS_COUNT * (elapsed_s / transparent._QUESTIONS_PAUSE_S + 2)
    assert len(read) <= most < sent, "the flood was none"
    assert len(egress.denied) == 100 and all(each.isprintable() for each in egress.denied)


MANY = """
import json, socket, sys, threading, time
count = int(sys.argv[1])
got = []
def one(number):
    try:
        with socket.create_connection(("api.example.test", 80), 30) as s:
            s.settimeout(30)
            s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
            said = b""
            while chunk := s.recv(999):
                said += chunk
            got.append("answer" if said.endswith(b"outside") else "cut")
    except OSError as error:
        got.append(type(error).__name__)
threads = [threading.Thread(target=one, args=(n,)) for n in range(count)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(json.dumps({kind: got.count(kind) for kind in sorted(set(got))}))
"""


def test_connections_are_bounded_at_a_time_and_in_all_and_those_in_time_are_served():
    async def work():
        there = Outside(api_example_test=[(PUBLIC,)])
        most = 0

        async def handle(reader, writer):
            nonlocal most
            most = max(most, len(site.egress._connections))
            await asyncio.sleep(0.01)
            await there._answer(reader, writer)

        await there.serve(80, handle)
        rules = EgressRules(
            read_rules(["api.example.test"]).hosts, limit_count=150, concurrent_count=16
        )
        async with networked_box(there, MANY, rules=rules, pids_count=512) as site:
            return json.loads(await site.run("200")), most, there, site.egress.denied

    got, most, there, denied = asyncio.run(work())
    assert got.pop("answer") == 150
    assert set(got) <= {"ConnectionRefusedError", "ConnectionResetError"}
    assert 1 < most <= 16 and len(there.dials) == 150
    assert denied == ("api.example.test:80 (over 150 connections)",)


THOUSAND = """
import json, select, socket
poller, waiting, got = select.poll(), {}, []
for number in range(1000):
    s = socket.socket()
    s.setblocking(False)
    s.connect_ex(("10.0.0.1", 80))
    waiting[s.fileno()] = s
    poller.register(s, select.POLLIN | select.POLLHUP | select.POLLERR)
while waiting:
    ready = poller.poll(15000)
    if not ready:
        break
    for descriptor, _ in ready:
        poller.unregister(descriptor)
        s = waiting.pop(descriptor)
        try:
            s.recv(1)
        except OSError as error:
            got.append(type(error).__name__)
        s.close()
print(json.dumps([len(waiting), len(got)]))
"""


def test_a_thousand_connects_at_once_are_all_refused():
    (left, refused), there, site = run(THOUSAND, hosts=["api.example.test"])
    assert (left, refused) == (0, 1000)
    assert there.dials == []
    assert "10.0.0.1:80 (private address)" in site.egress.denied


BULK = """
import json, socket
got = 0
try:
    s = socket.create_connection(("api.example.test", 80), 5)
    s.sendall(b"x" * int(1e5))
    while chunk := s.recv(65536):
        got += len(chunk)
    print(json.dumps([got, "ended"]))
except OSError as error:
    print(json.dumps([got, type(error).__name__]))
"""


def test_bytes_are_bounded_both_ways_together():
    async def work():
        async def endless(reader, writer):
            with suppress(ConnectionError):
                await reader.readexactly(100_000)
                while True:
                    writer.write(b"y" * 65536)
                    await writer.drain()

        there = Outside(api_example_test=[(PUBLIC,)])
        await there.serve(80, endless)
        rules = EgressRules(read_rules(["api.example.test"]).hosts, limit_bytes=1_000_000)
        async with networked_box(there, BULK, rules=rules) as site:
            return json.loads(await site.run()), site.egress.denied

    (got, how), denied = asyncio.run(work())
    assert how == "ConnectionResetError" and 0 < got <= 900_000
    assert denied == ("api.example.test:80 (over 1000000 bytes)",)


LINGER = """
import os, socket, time
s = socket.create_connection(("api.example.test", 80), 5)
s.sendall(b"hello")
print(s.recv(9).decode(), flush=True)
if os.fork() == 0:
    os.setsid()
    time.sleep(60)
os._exit(0)
"""


def test_nothing_of_a_connection_is_left_when_the_command_has_ended():
    async def work():
        gone = asyncio.Event()

        async def greet(reader, writer):
            writer.write(b"there")
            with suppress(ConnectionError):
                while await reader.read(99):
                    pass
            gone.set()
            writer.close()

        there = Outside(api_example_test=[(PUBLIC,)])
        await there.serve(80, greet)
        async with networked_box(there, LINGER, hosts=["api.example.test"]) as site:
            assert await site.run() == "there\n"
            async with asyncio.timeout(5):
                await gone.wait()  # its child, which held the connection, is dead too
                while site.egress._connections:
                    await asyncio.sleep(0.01)

    asyncio.run(work())
