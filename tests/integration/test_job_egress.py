"""A step's own egress: `egress: {allow: [host]}`, by the same rules as a snippet's."""

import functools
import http.server
import socket
import threading
from collections.abc import Iterator

import pytest

from cloche.egress.transparent import TransparentEgress
from cloche.errors import InvalidRequestError
from cloche.jobs import entry
from cloche.model.job import Verdict
from job_site import JobSite, open_site

FETCH = "node -e \"fetch('http://%s/').then(r=>r.text()).then(t=>console.log('got', t))\""


class _Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobSite]:
    """A site whose jobs find one server behind every public address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()

    async def resolve(name: str) -> list[str]:
        return ["10.0.0.1"] if name.startswith("private") else ["93.184.216.34"]

    async def dial(address: str, port: int) -> socket.socket:
        assert (address, port) in (("93.184.216.34", 80), ("93.184.216.34", 8123))
        channel = socket.create_connection(server.server_address[:2])
        channel.setblocking(False)
        return channel

    async def open_egress(box, rules, *, on_decision):
        egress = TransparentEgress(
            rules, await box.catch(), resolve=resolve, dial=dial, on_decision=on_decision
        )
        egress.start()
        return egress

    with pytest.MonkeyPatch.context() as patch, open_site(tmp_path_factory.mktemp("site")) as site:
        patch.setattr(entry, "JobHost", functools.partial(entry.JobHost, open_egress=open_egress))
        yield site
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_step_reaches_the_hosts_that_the_job_allows_and_the_record_says_so(site: JobSite) -> None:
    ran = site.step(FETCH % "api.test", egress={"allow": ["api.test"]})
    assert (ran.verdict, ran.lines("attack")[-1]) == (Verdict.PASSED, "got hello")
    (decision,) = ran.result.audit["egress"]
    assert decision == {
        "step": "attack",
        "host": "api.test",
        "port": 80,
        "allowed": True,
        "reason": "",
        "address": "93.184.216.34",
    }
    assert ran.result.denied == ()


@pytest.mark.parametrize(
    ("host", "what", "why"),
    [
        ("other.test", "other.test", "not in allow_hosts"),
        ("private.test", "private.test:80", "private address 10.0.0.1"),
        ("10.0.0.1", "10.0.0.1:80", "private address"),
    ],
)
def test_what_the_job_does_not_allow_is_refused_and_recorded(
    site: JobSite, host: str, what: str, why: str
) -> None:
    ran = site.step(FETCH % host, egress={"allow": ["api.test", "private.test"]})
    assert ran.verdict is Verdict.FAILED
    (denial,) = ran.result.denied
    assert (denial.step, denial.what, denial.why) == ("attack", what, why)
    assert ran.result.audit["denied"] == [{"step": "attack", "what": what, "why": why}]


def test_a_step_without_egress_has_no_network_at_all(site: JobSite) -> None:
    ran = site.step(FETCH % "api.test")
    assert ran.verdict is Verdict.FAILED
    assert (ran.result.denied, ran.result.audit["egress"]) == ((), [])


def test_a_steps_own_egress_stands_in_for_the_jobs(site: JobSite) -> None:
    ran = site.steps(
        {
            "own": {"shell": FETCH % "api.test:8123", "egress": {"allow": ["api.test:8123"]}},
            "none": {"shell": f"! {FETCH % 'api.test'}", "egress": {"allow": []}},
            "jobs": FETCH % "api.test",
        },
        egress={"allow": ["api.test"]},
    )
    # In the second one the fetch fails, which `!` turns round.
    assert [result.status for result in ran.result.steps] == ["passed", "passed", "passed"]
    assert [decision["step"] for decision in ran.result.audit["egress"]] == ["own", "jobs"]


def test_a_host_that_is_none_is_refused_before_anything_starts(site: JobSite) -> None:
    for host in ("https://api.test", "api", "10.0.0.1", "api.test:0", "a b"):
        with pytest.raises(InvalidRequestError, match="egress: allow: "):
            site.step("true", egress={"allow": [host]})


def test_bytes_over_the_jobs_limit_end_the_connection(site: JobSite) -> None:
    post = "fetch('http://api.test/',{method:'POST',body:Buffer.alloc(%d)}).then(()=>0)"
    small, large = (f'node -e "{post % count}"' for count in (500_000, 2_000_000))
    fields = {"egress": {"allow": ["api.test"]}, "limits": {"egress_mb": 1}}
    assert site.step(small, **fields).verdict is Verdict.PASSED
    ran = site.step(large, **fields)
    assert ran.verdict is Verdict.FAILED
    (denial,) = ran.result.denied
    assert denial.why == "over 1048576 bytes"
