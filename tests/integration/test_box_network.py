"""Boxes with egress: programs that know nothing of it reach what is allowed, and only that."""

import asyncio
import errno
import hashlib
import json
import shutil
import socket
from ipaddress import ip_address

import pytest

from cloche.backends.namespaces import NamespacesBackend
from cloche.egress.rules import EgressRules, read_rules
from cloche.egress.transparent import TransparentEgress, open_egress
from cloche.errors import InternalError
from cloche.linux.netns import CaughtSockets, own_addresses
from cloche.model.plan import BoxPlan
from cloche.model.policy import Limits
from egress_site import PUBLIC, Outside, environment_of, make_certificate, networked_box
from needs import BOX, needs, require_facts

pytestmark = needs(*BOX, "runtime-python")

FETCH_JS = """
const errors = [];
async function got(url) {
  try { return await (await fetch(url)).text(); }
  catch (error) { return `refused ${error.code ?? error.cause?.code ?? error.name}`; }
}
const urls = ["https://api.example.test/path", "http://api.example.test/", "https://evil.test/"];
console.log(JSON.stringify(await Promise.all(urls.map(got))));
"""
NODE_HTTPS = """
import https from "node:https";
import http from "node:http";
const got = (module, url) => new Promise((done) => {
  const request = module.get(url, (response) => {
    let text = "";
    response.on("data", (chunk) => { text += chunk; });
    response.on("end", () => done(text));
  });
  request.on("error", (error) => done(`refused ${error.code}`));
});
console.log(JSON.stringify(await Promise.all([
  got(https, "https://api.example.test/path"), got(http, "http://api.example.test/"),
  got(https, "https://evil.test/"),
])));
"""
URLLIB = """
import json, urllib.request
def got(url):
    try:
        return urllib.request.urlopen(url, timeout=5).read().decode()
    except OSError as error:
        return f"refused {error}"
urls = ["https://api.example.test/path", "http://api.example.test/", "https://evil.test/"]
print(json.dumps([got(url) for url in urls]))
"""
CLIENTS = [
    ("python", URLLIB), ("bun", FETCH_JS), ("bun", NODE_HTTPS), ("node", FETCH_JS),
    ("node", NODE_HTTPS), ("deno", FETCH_JS), ("deno", NODE_HTTPS),
]  # fmt: skip


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("certificate")
    return make_certificate(folder, "api.example.test", "other.test")


def outside(**names):
    return Outside(api_example_test=[(PUBLIC,)], **names)


@pytest.mark.parametrize(("runtime", "code"), CLIENTS)
def test_unmodified_clients_reach_an_allowed_host_and_no_other(certificate, runtime, code):
    require_facts(f"runtime-{runtime}")

    async def work():
        there = outside(evil_test=[(PUBLIC,)])
        await there.serve(443, tls=certificate)
        await there.serve(80)
        async with networked_box(there, code, hosts=["api.example.test"], runtime=runtime) as site:
            printed = await site.run()
            return json.loads(printed or f'"{site.errors!r}"'), there, site

    (secure, plain, other), there, site = asyncio.run(work())
    assert (secure, plain) == ("hello from outside",) * 2, site.errors
    assert other.startswith("refused")
    assert site.egress.denied == ("evil.test (not in allow_hosts)",)
    assert sorted(there.dials) == [(PUBLIC, 80), (PUBLIC, 443)]
    assert there.lookups == ["api.example.test"]  # once a box, and never another name
    assert [head.split(b"\r\n")[0] for head in sorted(there.requests)] == [
        b"GET / HTTP/1.1",
        b"GET /path HTTP/1.1",
    ]
    allowed = [(each.host, each.port, each.address) for each in site.decisions if each.allowed]
    assert sorted(allowed) == [
        ("api.example.test", 80, PUBLIC),
        ("api.example.test", 443, PUBLIC),
    ]


FETCH_ANY = """
import json, socket, urllib.request
def got(url):
    try:
        return urllib.request.urlopen(url, timeout=5).read().decode()
    except OSError as error:
        return "refused"
urls = ["http://one.test/", "http://two.test:8080/", "http://%s/" % PUBLIC, "http://10.0.0.1/",
        "http://169.254.169.254/", "http://private.test/", "http://nowhere.test/"]
print(json.dumps([got(url) for url in urls]))
""".replace("PUBLIC", repr(PUBLIC))


def test_with_any_public_names_and_bare_addresses_are_reached_unless_they_are_private():
    async def work():
        there = Outside(
            one_test=[(PUBLIC,)],
            two_test=[("::1", "2606:4700::1111")],
            private_test=[("10.0.0.8",)],
        )
        await there.serve(80)
        await there.serve(8080)
        async with networked_box(there, FETCH_ANY, any_public=True) as site:
            return json.loads(await site.run()), there, site.egress.denied

    got, there, denied = asyncio.run(work())
    assert got == ["hello from outside"] * 3 + ["refused"] * 4
    assert there.dials == [(PUBLIC, 80), ("2606:4700::1111", 8080), (PUBLIC, 80)]
    assert denied == (
        "10.0.0.1:80 (private address)",
        "169.254.169.254:80 (cloud metadata address)",
        "private.test:80 (private address 10.0.0.8)",
        "nowhere.test:80 (has no address)",
    )


HALF_CLOSE = """
import hashlib, json, socket
s = socket.create_connection(("bulk.example.test", 9000), 5)
sent = hashlib.sha256()
block = bytes(range(256)) * 4096
for number in range(8):
    s.sendall(block); sent.update(block)
s.shutdown(socket.SHUT_WR)
got = b""
while chunk := s.recv(65536):
    got += chunk
print(json.dumps([sent.hexdigest(), got.decode()]))
"""


def test_a_side_that_has_ended_still_hears_the_other_and_no_byte_is_lost():
    async def work():
        async def digest(reader, writer):
            seen = hashlib.sha256()
            while chunk := await reader.read(1 << 16):
                await asyncio.sleep(0.001)  # slower than the guest: it must wait
                seen.update(chunk)
            writer.write(seen.hexdigest().encode())
            writer.close()

        there = Outside(bulk_example_test=[(PUBLIC,)])
        await there.serve(9000, digest)
        async with networked_box(there, HALF_CLOSE, hosts=["bulk.example.test:9000"]) as site:
            printed = await site.run()
            return json.loads(printed), site.egress.passed_bytes

    (sent, seen), passed_bytes = asyncio.run(work())
    assert sent == seen
    assert passed_bytes == 8 * (1 << 20) + 64


SERVER_FIRST = """
import socket
s = socket.create_connection(("mail.example.test", 2525), 5)
print(s.recv(64).decode(), end="")
s.sendall(b"QUIT\\r\\n")
print(s.recv(64).decode(), end="")
"""


def test_a_protocol_where_the_server_speaks_first_works_on_a_named_port():
    async def work():
        async def mail(reader, writer):
            writer.write(b"220 ready\n")
            line = await reader.readline()
            writer.write(b"221 " + line)
            writer.close()

        there = Outside(mail_example_test=[(PUBLIC,)])
        await there.serve(2525, mail)
        async with networked_box(there, SERVER_FIRST, hosts=["mail.example.test:2525"]) as site:
            return await site.run()

    assert asyncio.run(work()) == "220 ready\n221 QUIT\r\n"


RETRIES = """
import json, socket
got = []
for _ in range(3):
    try:
        s = socket.create_connection(("api.example.test", 80), 5)
        s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n"); s.recv(5); got.append("answer")
    except OSError as error:
        got.append(type(error).__name__)
print(json.dumps(got))
"""


def test_the_next_address_is_tried_and_a_host_that_does_not_answer_is_reported():
    async def work():
        there = Outside(api_example_test=[("9.9.9.9", PUBLIC)])
        async with networked_box(there, RETRIES, hosts=["api.example.test"]) as site:
            return json.loads(await site.run()), there, site

    got, there, site = asyncio.run(work())
    assert got == ["ConnectionResetError"] * 3
    assert there.dials == [("9.9.9.9", 80), (PUBLIC, 80)] * 3
    assert there.lookups == ["api.example.test"]
    assert site.egress.denied == ()
    assert {str(each) for each in site.decisions} == {"api.example.test:80 (Connection refused)"}


REBOUND = """
import json, socket, sys
def reach(name):
    try:
        s = socket.create_connection((name, 80), 5)
        s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
        return "reached" if s.recv(5) else "ended"
    except OSError as error:
        return "refused"
print(json.dumps([reach(name) for name in ("first.test", "second.test")]))
"""


def test_a_box_gets_its_rules_when_a_run_takes_it():
    async def work():
        there = Outside(first_test=[(PUBLIC,)], second_test=[(PUBLIC,)])
        await there.serve(80)
        async with networked_box(there, REBOUND, hosts=["first.test"]) as site:
            before = json.loads(await site.run())
            site.egress.rebind(read_rules(["second.test"]))
            with pytest.raises(ValueError, match="does not catch port 8443"):
                site.egress.rebind(read_rules(["second.test:8443"]))
            return before, json.loads(await site.run()), site.egress.denied

    before, after, denied = asyncio.run(work())
    assert (before, after) == (["reached", "refused"], ["refused", "reached"])
    assert denied == ("second.test (not in allow_hosts)", "first.test (not in allow_hosts)")


SILENT = """
import socket
s = socket.create_connection(("api.example.test", 80), 5)
s.sendall(b"GET / HTTP/1.1\\r\\n\\r\\n")
print("waiting", flush=True)
try:
    print(s.recv(5))
except OSError as error:
    print(type(error).__name__)
"""


def test_closing_ends_a_connection_that_is_silent_and_the_far_side_sees_it():
    async def work():
        came, gone = asyncio.Event(), asyncio.Event()

        async def never(reader, writer):
            try:
                while await reader.read(99):
                    came.set()
            except ConnectionResetError:
                pass
            gone.set()
            writer.close()

        there = outside()
        await there.serve(80, never)
        async with networked_box(there, SILENT, hosts=["api.example.test"]) as site:
            running = asyncio.ensure_future(site.run())
            async with asyncio.timeout(10):
                await came.wait()
                await site.egress.close()
                await gone.wait()
                return await running

    assert asyncio.run(work()) == "waiting\nConnectionResetError\n"


def test_an_address_that_the_host_has_is_refused_though_it_is_public():
    async def work():
        there = outside()
        await there.serve(80)
        own = {ip_address(PUBLIC)}
        async with networked_box(
            there, RETRIES, hosts=["api.example.test"], own_addresses=lambda: own
        ) as site:
            got = json.loads(await site.run())
            own.clear()  # the control; and an interface may lose its address at any time
            return got, json.loads(await site.run()), site.egress.denied

    got, control, denied = asyncio.run(work())
    assert got == ["ConnectionResetError"] * 3 and control == ["answer"] * 3
    assert denied == (f"api.example.test:80 (address of this host {PUBLIC})",)


def test_the_hosts_own_addresses_are_those_that_it_connects_from():
    own = own_addresses()
    assert ip_address("127.0.0.1") in own
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("8.8.8.8", 9))  # sends nothing: asks for the route
        except OSError:
            return
        assert ip_address(probe.getsockname()[0]) in own


def test_open_egress_serves_a_box_and_a_box_without_egress_has_none_to_serve():
    async def work():
        backend = NamespacesBackend()
        try:
            rules = read_rules(["api.example.test"])
            plan = BoxPlan(environment_of("python"), Limits(), catch_ports=rules.ports)
            box = await backend.create(plan)
            try:
                egress = await open_egress(box, rules)
                await egress.close()
                await egress.close()
                with pytest.raises(InternalError):
                    await box.catch()
            finally:
                await box.destroy()
            box = await backend.create(plan)
            try:
                with pytest.raises(ValueError, match="does not catch port 9000"):
                    await open_egress(box, read_rules(["api.example.test:9000"]))
            finally:
                await box.destroy()
            box = await backend.create(plan)
            await box.destroy()  # with nobody having asked for its sockets
        finally:
            await backend.close()

    asyncio.run(work())


RESOLVERS = """
import dns from "node:dns";
const got = [];
for (const [ask, name] of [["resolve4", "api.example.test"], ["resolve6", "api.example.test"],
                           ["resolveTxt", "api.example.test"], ["resolve4", "evil.test"],
                           ["lookup", "api.example.test"], ["lookup", "evil.test"]]) {
  try { got.push(await dns.promises[ask](name)); } catch (error) { got.push(error.code); }
}
console.log(JSON.stringify(got));
"""


@pytest.mark.parametrize("runtime", ["bun", "node", "deno"])
def test_the_resolvers_of_runtimes_take_the_answers(runtime):
    require_facts(f"runtime-{runtime}")

    async def work():
        there = outside()
        async with networked_box(
            there, RESOLVERS, hosts=["api.example.test"], runtime=runtime
        ) as site:
            return json.loads(await site.run()), there.lookups

    got, lookups = asyncio.run(work())
    assert got[0] == ["240.0.0.1"] and got[4]["address"] == "240.0.0.1"
    assert got[1] in ("ENODATA", "ENOTFOUND", []) and got[2] in ("ENODATA", "ENOTFOUND", [])
    assert (got[3], got[5]) == ("ENOTFOUND", "ENOTFOUND")
    assert lookups == []


def test_without_descriptors_a_connection_waits_until_there_are_some():
    class Scarce(socket.socket):
        """A listener of this host, in the place of a box's."""

        failures_left = 2

        def accept(self):
            if self.failures_left:
                self.failures_left -= 1
                raise OSError(errno.EMFILE, "Too many open files")
            return super().accept()

    async def work():
        listener = Scarce(socket.AF_INET, socket.SOCK_STREAM)
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        names = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        names.bind(("127.0.0.1", 0))
        place = listener.getsockname()
        caught = CaughtSockets(names, {place[1]: listener})
        egress = TransparentEgress(EgressRules(), caught)
        egress.start()
        try:
            reader, writer = await asyncio.open_connection(*place)
            with pytest.raises(ConnectionResetError):
                await reader.read()
            writer.close()
        finally:
            await egress.close()
        return listener.failures_left, egress.denied

    left, denied = asyncio.run(work())
    assert left == 0
    assert len(denied) == 1 and "loopback address" in denied[0]
