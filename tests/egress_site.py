"""The Internet as tests of egress have it: names, public addresses, and servers on loopback."""

import asyncio
import ssl
import subprocess
from contextlib import asynccontextmanager
from pathlib import Path

from cloche.backends.base import Sinks
from cloche.backends.namespaces import NamespacesBackend
from cloche.egress import dialling
from cloche.egress.rules import read_rules
from cloche.egress.transparent import TransparentEgress
from cloche.environments.roots import (
    library_entries,
    make_environment,
    python_environment,
)
from cloche.environments.runtimes import require_runtime
from cloche.linux.libraries import find_libraries
from cloche.linux.netns import own_addresses
from cloche.model.plan import BoxPlan, Command, Scratch
from cloche.model.policy import Limits

PUBLIC = "93.184.215.14"
# What each runtime is started with, and the variable that names the authorities it trusts.
PROGRAMS = {
    "python": (("/usr/bin/python3", "-I", "-S", "/workspace/main.py"), "SSL_CERT_FILE"),
    "bun": (("/usr/bin/bun", "--no-install", "/workspace/main.mjs"), "NODE_EXTRA_CA_CERTS"),
    "node": (("/usr/bin/node", "/workspace/main.mjs"), "NODE_EXTRA_CA_CERTS"),
    "deno": (("/usr/bin/deno", "run", "-A", "--no-remote", "/workspace/main.mjs"), "DENO_CERT"),
}


def make_certificate(folder: Path, *names: str) -> tuple[Path, Path, Path]:
    """A certificate for names, its key, and the authority that it is from."""
    authority, authority_key = folder / "authority.pem", folder / "authority-key.pem"
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    _request("/CN=authority of tests", authority, authority_key)
    alternatives = ",".join(f"DNS:{name}" for name in names)
    _request(
        "/CN=tests", certificate, key, "-CA", str(authority), "-CAkey", str(authority_key),
        "-addext", f"subjectAltName={alternatives}", "-addext", "basicConstraints=CA:FALSE",
    )  # fmt: skip
    return certificate, key, authority


def _request(subject: str, certificate: Path, key: Path, *options: str) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-days", "2", "-subj", subject, *options, "-keyout", str(key),
         "-out", str(certificate)],
        check=True, capture_output=True, timeout=30,
    )  # fmt: skip


def environment_of(name):
    runtime = require_runtime(name)
    if name == "python":
        return python_environment(runtime)
    libraries = library_entries(find_libraries(runtime.host_path, ()))
    entries = [("bind", f"/usr/bin/{name}", str(runtime.host_path)), *libraries]
    return make_environment(f"plain-{name}", entries)


class Outside:
    """Names → addresses, and what is behind every address: servers by port.

    Attributes:
        names: Name → its addresses, for each look-up in turn; the last one stays.
        lookups, dials: What was asked for, and connected to.
        requests: Heads of HTTP requests as they came.
    """

    def __init__(self, **names):
        self.names = {name.replace("_", "."): list(found) for name, found in names.items()}
        self.lookups = []
        self.dials = []
        self.requests = []
        self.servers = {}
        self.authority = None

    async def resolve(self, name):
        self.lookups.append(name)
        answers = self.names.get(name)
        if not answers:
            raise OSError(f"no such name: {name}")
        return answers.pop(0) if len(answers) > 1 else answers[0]

    async def dial(self, address, port):
        self.dials.append((address, port))
        if port not in self.servers:
            raise ConnectionRefusedError(111, "Connection refused")
        return await dialling.dial("127.0.0.1", self.servers[port].sockets[0].getsockname()[1])

    async def serve(self, port, handle=None, *, tls=None):
        context = None
        if tls is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            certificate, key, self.authority = tls
            context.load_cert_chain(certificate, key)
        handle = handle or self._answer
        self.servers[port] = await asyncio.start_server(handle, "127.0.0.1", 0, ssl=context)

    async def _answer(self, reader, writer):
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            self.requests.append(head)
            body = b"hello from outside"
            writer.write(
                b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: text/plain\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
            )
            await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError, ssl.SSLError):
            pass
        finally:
            writer.close()

    async def close(self):
        for server in self.servers.values():
            server.close()
        await asyncio.sleep(0)


class Site:
    """A box with egress, and how its programs ended."""

    def __init__(self, backend, outside, runtime):
        self.backend = backend
        self.outside = outside
        self.runtime = runtime
        self.decisions = []
        self.errors = ""
        self.box = self.egress = None

    async def run(self, *args):
        """Runs the program; returns what it prints."""
        printed = []
        argv, variable = PROGRAMS[self.runtime]
        env = {"HOME": "/tmp", "DENO_DIR": "/tmp/deno", "NO_COLOR": "1"}
        if self.outside.authority is not None:
            env[variable] = "/workspace/ca.pem"

        def take(chunk):
            printed.append(chunk.decode())

        def take_error(chunk):
            self.errors += chunk.decode()

        sinks = Sinks(take, take_error, lambda chunk: None)
        command = Command((*argv, *args), env=env)
        self.outcome = await self.box.exec(command, stdin=b"", control=b"", sinks=sinks)
        return "".join(printed)


@asynccontextmanager
async def networked_box(
    outside,
    code,
    *,
    hosts=(),
    any_public=False,
    runtime="python",
    rules=None,
    own_addresses=own_addresses,
    **limits,
):
    """A box with a program in it whose connects arrive at `outside`; see `Site`."""
    rules = rules or read_rules(hosts, any_public=any_public)
    name = "main.py" if runtime == "python" else "main.mjs"
    files = {name: code.encode()}
    if outside.authority is not None:
        files["ca.pem"] = outside.authority.read_bytes()
    settings = {"timeout_ms": 20_000, "memory_mb": 512} | limits
    plan = BoxPlan(
        environment_of(runtime),
        Limits(**settings),
        scratch=Scratch.WRITABLE,
        files=files,
        catch_ports=rules.ports,
    )
    backend = NamespacesBackend()
    site = Site(backend, outside, runtime)
    try:
        site.box = await backend.create(plan)
        try:
            site.egress = TransparentEgress(
                rules,
                await site.box.catch(),
                resolve=outside.resolve,
                dial=outside.dial,
                own_addresses=own_addresses,
                on_decision=site.decisions.append,
            )
            site.egress.start()
            try:
                yield site
            finally:
                await site.egress.close()
        finally:
            await site.box.destroy()
    finally:
        await outside.close()
        await backend.close()
