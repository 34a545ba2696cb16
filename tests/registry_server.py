"""A small npm registry on loopback, over HTTP or TLS, that does as a test tells it."""

import base64
import gzip
import hashlib
import io
import json
import shutil
import socket
import ssl
import subprocess
import tarfile
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cloche.model.package import Package


def integrity_of(data: bytes) -> str:
    """The SRI token of these bytes."""
    return "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()


def make_tarball(name: str, version: str, files: Mapping[str, str] | None = None) -> bytes:
    """A package's tarball; equal for equal arguments."""
    manifest = json.dumps({"name": name, "version": version})
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as writer:
        for path, text in {"package.json": manifest, **(files or {})}.items():
            member = tarfile.TarInfo(f"package/{path}")
            member.size = len(text.encode())
            writer.addfile(member, io.BytesIO(text.encode()))
    return gzip.compress(tar.getvalue(), mtime=0)


KEYS_PATH = "/-/npm/v1/keys"
"""Where a registry has the keys that it signs packages with; each new layer asks for them."""


@dataclass(frozen=True)
class Seen:
    """A request as it arrived; header names in lower case."""

    method: str
    path: str
    headers: Mapping[str, str]


class Handler(BaseHTTPRequestHandler):
    """Answers from the server's packages, or as the server's script says."""

    protocol_version = "HTTP/1.1"
    # A test that fails must not wait for a client for ever.
    timeout = 20
    server: "_Server"

    def setup(self) -> None:
        super().setup()
        self.server.channels.add(self.connection)
        self.server.connections_count += 1

    def finish(self) -> None:
        with suppress(OSError):
            super().finish()
        self.server.channels.discard(self.connection)

    def log_message(self, format: str, *args: object) -> None:
        pass

    def handle(self) -> None:
        # Clients hang up as they like; some do not trust the certificate.
        with suppress(OSError):
            super().handle()

    def answer(self, status: int, data: bytes = b"", **headers: str) -> None:
        """A whole answer; header names with `_` in place of `-`."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_GET(self) -> None:
        # A proxy is asked with a whole address.
        self.path = self.path.removeprefix(f"http://127.0.0.1:{self.server.server_port}")
        headers = {name.lower(): value for name, value in self.headers.items()}
        if self.path.endswith(KEYS_PATH):
            self.server.keys_asked_count += 1
        else:
            self.server.seen.append(Seen(self.command, self.path, headers))
        script = self.server.scripts.get(self.path)
        if script:
            script.pop(0)(self)
        elif self.path in self.server.files:
            headers = self.server.headers.get(self.path, {})
            self.answer(200, self.server.files[self.path], **headers)
        else:
            self.answer(404, b"{}")


for _method in ("HEAD", "POST", "PUT", "DELETE", "PATCH"):
    setattr(Handler, f"do_{_method}", Handler.do_GET)


Answer = Callable[[Handler], None]
"""Answers one request."""


def status(code: int, data: bytes = b"", **headers: str) -> Answer:
    """An answer with this status."""
    return lambda handler: handler.answer(code, data, **headers)


def redirect(url: str, code: int = 302) -> Answer:
    """Sends the client elsewhere."""
    return status(code, Location=url)


def truncated(data: bytes, announced_bytes: int) -> Answer:
    """Announces more than it sends, and hangs up."""

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(announced_bytes))
        handler.end_headers()
        handler.wfile.write(data)
        handler.close_connection = True

    return answer


def hang_up(handler: Handler) -> None:
    """Closes the connection without a word."""
    handler.close_connection = True


def held(event: threading.Event, answer: Answer) -> Answer:
    """Waits for the test (at most 20 s) before it answers."""

    def wait(handler: Handler) -> None:
        event.wait(20)
        answer(handler)

    return wait


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.keys_asked_count = 0
        self.files: dict[str, bytes] = {}
        self.headers: dict[str, dict[str, str]] = {}
        self.scripts: dict[str, list[Answer]] = {}
        self.channels: set[socket.socket] = set()
        self.connections_count = 0
        super().__init__(("127.0.0.1", 0), Handler)


@dataclass(frozen=True)
class Authority:
    """Files of a certificate authority of its own, and of a certificate for 127.0.0.1."""

    ca_file: Path
    certificate_file: Path
    key_file: Path


def make_authority(folder: Path) -> Authority:
    """Makes a new authority; skips the test where there is no openssl."""
    program = shutil.which("openssl")
    if program is None:
        pytest.skip("missing fact: openssl (no such program). Fix: apt-get install openssl")
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca = ("-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=authority.test")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-keyout", "key.pem", "-out", "certificate.pem")
    names = ("-subj", "/CN=registry.test", "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost")
    for arguments in ((*new_key, *ca), (*new_key, *signed, *names, "-days", "2")):
        subprocess.run(
            [program, "req", "-x509", *arguments], cwd=folder, check=True, capture_output=True
        )
    return Authority(folder / "ca.pem", folder / "certificate.pem", folder / "key.pem")


class RegistryServer:
    """Use it in a `with`; `url` is its address, with a slash at the end.

    Args:
        authority: Serves TLS with its certificate; None: plain HTTP.
        base: The path that the registry lies below.
    """

    def __init__(self, authority: Authority | None = None, base: str = "/") -> None:
        self._server = _Server()
        self.port: int = self._server.server_address[1]
        self.base = base
        scheme = "http"
        if authority is not None:
            scheme = "https"
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(authority.certificate_file, authority.key_file)
            # The handshake is left to the thread that reads.
            self._server.socket = context.wrap_socket(
                self._server.socket, server_side=True, do_handshake_on_connect=False
            )
        self.origin = f"{scheme}://127.0.0.1:{self.port}"
        self.url = self.origin + base
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self) -> "RegistryServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self.drop_connections()
        self._server.server_close()

    def drop_connections(self) -> None:
        """Hangs up on everyone."""
        for channel in list(self._server.channels):
            with suppress(OSError):
                socket.socket.shutdown(channel, socket.SHUT_RDWR)

    @property
    def seen(self) -> list[Seen]:
        """Every request so far, but those for its keys."""
        return self._server.seen

    @property
    def keys_asked_count(self) -> int:
        """How often it was asked for its keys."""
        return self._server.keys_asked_count

    @property
    def connections_count(self) -> int:
        """How many there have been."""
        return self._server.connections_count

    def paths(self) -> list[str]:
        """Of every request so far."""
        return [each.path for each in self.seen]

    def describe(self, name: str, metadata: Mapping[str, object]) -> None:
        """Says this of a package."""
        path = self.base + name.replace("/", "%2f")
        self._server.files[path] = json.dumps(metadata).encode()

    def add(
        self, name: str, version: str, data: bytes | None = None, *, path: str | None = None
    ) -> Package:
        """Publishes a package, with its metadata; at another path than the usual where given."""
        data = make_tarball(name, version) if data is None else data
        package = Package(name, version, integrity_of(data))
        path = self.base + package.tarball_path if path is None else path
        self._server.files[path] = data
        metadata_path = self.base + name.replace("/", "%2f")
        known = json.loads(self._server.files.get(metadata_path, b'{"versions": {}}'))
        known["name"] = name
        dist = {"tarball": self.origin + path, "integrity": package.integrity}
        known["versions"][version] = {"name": name, "version": version, "dist": dist}
        self._server.files[metadata_path] = json.dumps(known).encode()
        return package

    def content(self, package: Package) -> bytes:
        """The tarball at the usual path."""
        return self._server.files[self.base + package.tarball_path]

    def serve(self, path: str, data: bytes, **headers: str) -> None:
        """Puts a file at a path; header names with `_` in place of `-`."""
        self._server.files[path] = data
        self._server.headers[path] = headers

    def script(self, package_or_path: Package | str, *answers: Answer) -> None:
        """The next answers for a path (or a package's tarball); the usual ones after these."""
        path = package_or_path
        if isinstance(path, Package):
            path = self.base + path.tarball_path
        self._server.scripts[path] = list(answers)
