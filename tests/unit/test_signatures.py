"""The registry's signatures of packages: by keys made here, over answers of every kind."""

import asyncio
import base64
import json
from dataclasses import asdict, replace

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa

from cloche.egress.registry import PackageError
from cloche.egress.signatures import KEYS_PATH, check_signatures
from cloche.model.job import ReasonCode
from cloche.model.package import Package

NOW = 1_800_000_000.0
INTEGRITY = "sha512-" + base64.b64encode(bytes(64)).decode()
PACKAGES = [Package("a", "1.0.0", INTEGRITY), Package("@s/b", "2.0.0-rc.1", INTEGRITY)]


def make_key():
    return ec.generate_private_key(ec.SECP256R1())


KEY, OTHER = make_key(), make_key()


def describe_key(pair, name="SHA256:one", **fields):
    public = pair.public_key().public_bytes(
        serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return {
        "expires": None,
        "keyid": name,
        "keytype": "ecdsa-sha2-nistp256",
        "scheme": "ecdsa-sha2-nistp256",
        "key": base64.b64encode(public).decode(),
        **fields,
    }


def sign(package, key=KEY, name="SHA256:one"):
    signature = key.sign(f"{package}:{package.integrity}".encode(), ec.ECDSA(hashes.SHA256()))
    return {"keyid": name, "sig": base64.b64encode(signature).decode()}


def describe(package, *signatures):
    dist = {"integrity": package.integrity, "signatures": list(signatures)}
    return {"name": package.name, "version": package.version, "dist": dist}


def path_of(package):
    return f"{package.name.replace('/', '%2f')}/{package.version}"


class Answers:
    """A registry that has these documents; an exception is raised."""

    def __init__(self, keys, documents):
        self.documents = {KEYS_PATH: keys, **documents}
        self.asked = []

    async def group(self, names):
        return {"http://registry.test/": list(names)}

    async def ask(self, name, path, limit_bytes, *, patiently=False):
        self.asked.append(path)
        found = self.documents.get(path)
        if isinstance(found, Exception):
            raise found
        return found if found is None or isinstance(found, bytes) else json.dumps(found).encode()


def check(registry, packages=PACKAGES):
    return asdict(asyncio.run(check_signatures(registry, packages, lambda: NOW)))


def counts(**given):
    names = ("verified", "unsigned", "unknown", "not_offered")
    return {f"{name}_count": given.get(name, 0) for name in names}


def keys(*described):
    return {"keys": list(described)}


def answers(*signatures_of_a, described=None):
    signed = {path_of(each): describe(each, sign(each)) for each in PACKAGES}
    if signatures_of_a:
        signed[path_of(PACKAGES[0])] = describe(PACKAGES[0], *signatures_of_a)
    return Answers(described or keys(describe_key(KEY)), signed)


def test_signatures_that_fit_are_counted():
    registry = answers()
    assert check(registry) == counts(verified=2)
    assert sorted(registry.asked) == ["-/npm/v1/keys", "@s%2fb/2.0.0-rc.1", "a/1.0.0"]


def test_each_registry_is_asked_for_its_own_keys():
    class Two(Answers):
        async def group(self, names):
            return {"http://registry.test/": ["a"], "http://other.test/": ["@s/b"]}

    registry = Two(keys(describe_key(KEY)), {})
    check(registry)
    assert registry.asked.count(KEYS_PATH) == 2


def test_a_registry_without_keys_is_asked_nothing_more():
    registry = Answers(None, {})
    assert check(registry) == counts(not_offered=2)
    assert registry.asked == [KEYS_PATH]


@pytest.mark.parametrize(
    "altered",
    [
        replace(PACKAGES[0], version="1.0.1"),
        replace(PACKAGES[0], name="b"),
        replace(PACKAGES[0], integrity="sha512-" + base64.b64encode(b"x" * 64).decode()),
    ],
)
def test_a_signature_of_something_else_is_refused(altered):
    with pytest.raises(PackageError) as caught:
        check(answers(sign(altered)))
    assert caught.value.code is ReasonCode.SIGNATURE_INVALID
    assert "a@1.0.0" in str(caught.value)


@pytest.mark.parametrize(
    "signature",
    [
        sign(PACKAGES[0], OTHER),
        {"keyid": "SHA256:one", "sig": "AAAA"},
        {"keyid": "SHA256:one", "sig": "no base64"},
        {"keyid": "SHA256:one", "sig": 7},
        {"keyid": "SHA256:one", "sig": None},
        {"keyid": "SHA256:one"},
    ],
)
def test_a_signature_that_is_none_is_refused(signature):
    with pytest.raises(PackageError):
        check(answers(signature))
    with pytest.raises(PackageError):
        check(answers(sign(PACKAGES[0]), signature))


@pytest.mark.parametrize("signature", [sign(PACKAGES[0], OTHER, "SHA256:two"), 7, None, []])
def test_a_signature_by_a_key_that_is_not_known_says_nothing(signature):
    assert check(answers(signature)) == counts(verified=1, unknown=1)
    assert check(answers(signature, sign(PACKAGES[0]))) == counts(verified=2)


@pytest.mark.parametrize("dist", [{}, {"signatures": []}, {"signatures": {}}, None, 7])
def test_a_package_without_signatures_is_told_as_such(dist):
    registry = answers()
    registry.documents["a/1.0.0"] = {"dist": dist}
    assert check(registry) == counts(verified=1, unsigned=1)


@pytest.mark.parametrize("document", [None, PackageError(ReasonCode.REGISTRY_FAILED, "it is down")])
def test_what_cannot_be_had_is_unknown(document):
    registry = answers()
    registry.documents["a/1.0.0"] = document
    assert check(registry) == counts(verified=1, unknown=1)
    registry.documents[KEYS_PATH] = PackageError(ReasonCode.REGISTRY_FAILED, "it is down")
    assert check(registry) == counts(unknown=2)


@pytest.mark.parametrize("document", [b"", b"{", b"[" * 100_000, b"7", b'{"keys": 7}', b"\xff"])
def test_documents_that_are_none_do_no_harm(document):
    registry = answers()
    registry.documents["a/1.0.0"] = document
    assert check(registry)["verified_count"] == 1
    registry.documents[KEYS_PATH] = document
    assert check(registry) == counts(unknown=2)


RSA = rsa.generate_private_key(65537, 2048)


@pytest.mark.parametrize(
    "described",
    [
        describe_key(KEY, expires="2020-01-01T00:00:00.000Z"),
        describe_key(KEY, expires="soon"),
        describe_key(KEY, expires=7),
        describe_key(KEY, scheme="rsa"),
        describe_key(KEY, key="AAAA"),
        describe_key(KEY, key=7),
        describe_key(RSA),
        describe_key(ec.generate_private_key(ec.SECP384R1())),
        {"keyid": "SHA256:one"},
        "key",
        None,
    ],
)
def test_keys_of_another_kind_and_expired_ones_are_not_used(described):
    assert check(answers(described=keys(described))) == counts(unknown=2)
    good = describe_key(KEY, expires="2099-01-01T00:00:00.000Z")
    assert check(answers(described=keys(described, good))) == counts(verified=2)
