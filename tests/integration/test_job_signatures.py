"""The registry's signatures of a job's packages: what is recorded, what is refused."""

import base64
import json

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import job_site
from cloche.model.job import ReasonCode, Verdict
from job_site import open_site
from needs import BOX, JOB, needs
from registry_server import KEYS_PATH, status

pytestmark = needs(*BOX, *JOB)
KEY = ec.generate_private_key(ec.SECP256R1())
LOOK = [{"name": "look", "argv": ["true"]}]


@pytest.fixture
def site(tmp_path):
    with open_site(tmp_path) as site:
        yield site


def publish_keys(site):
    public = KEY.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    key = {
        "keyid": "one",
        "scheme": "ecdsa-sha2-nistp256",
        "key": base64.b64encode(public).decode(),
    }
    site.registry.serve(KEYS_PATH, json.dumps({"keys": [key]}).encode())


def sign(site, package, text=None):
    message = text or f"{package}:{package.integrity}"
    signature = base64.b64encode(KEY.sign(message.encode(), ec.ECDSA(hashes.SHA256()))).decode()
    dist = {"signatures": [{"keyid": "one", "sig": signature}]}
    path = f"/{package.name.replace('/', '%2f')}/{package.version}"
    site.registry.serve(path, json.dumps({"dist": dist}).encode())
    return path


def signatures_of(ran):
    found = ran.result.audit["layer"]["signatures"]
    return found and {name.removesuffix("_count"): count for name, count in found.items() if count}


def test_the_record_says_how_many_packages_are_signed(site):
    signed, other = site.publish("@s/signed"), site.publish("unsigned")
    publish_keys(site)
    sign(site, signed)
    site.registry.serve("/unsigned/1.0.0", b'{"dist": {}}')
    first = site.run(job_site.project(signed, other), steps=LOOK)
    assert first.verdict is Verdict.PASSED, first.message
    assert signatures_of(first) == {"verified": 1, "unsigned": 1}
    asked_count = len(site.registry.paths())
    again = site.run(job_site.project(signed, other), steps=LOOK)
    assert (again.step("install").cached, signatures_of(again)) == (True, None)
    assert len(site.registry.paths()) == asked_count
    assert site.registry.keys_asked_count == 1


def test_a_registry_without_keys_costs_one_question(site):
    package = site.publish("package")
    ran = site.run(job_site.project(package), steps=LOOK)
    assert ran.verdict is Verdict.PASSED, ran.message
    assert signatures_of(ran) == {"not_offered": 1}
    assert site.registry.keys_asked_count == 1
    assert site.registry.paths() == ["/package/-/package-1.0.0.tgz"]


def test_a_signature_that_does_not_fit_refuses_the_install(site):
    package = site.publish("package")
    publish_keys(site)
    sign(site, package, "package@1.0.0:sha512-other")
    ran = site.run(job_site.project(package), steps=LOOK)
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.SIGNATURE_INVALID)
    assert (ran.result.failed_step, site.trees()) == ("install", [])
    assert "package@1.0.0" in ran.message
    sign(site, package)
    assert site.run(job_site.project(package), steps=LOOK).verdict is Verdict.PASSED


def test_a_registry_that_fails_to_tell_does_not_stop_the_install(site):
    package = site.publish("package")
    publish_keys(site)
    path = sign(site, package)
    site.registry.script(path, *[status(503)] * 9)
    ran = site.run(job_site.project(package), steps=LOOK)
    assert ran.verdict is Verdict.PASSED, ran.message
    assert signatures_of(ran) == {"unknown": 1}
