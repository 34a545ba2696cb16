"""Threat: a guest reads the host's files, credentials or environment (threat model: files)."""

import json

import pytest

import cloche
from attack import inside, outside

# Two objects of CPython that lead to `open`, and every spelling of a path of the host.
SUBCLASS_WALK = """
import json, os, sys
got = []
for kind in object.__subclasses__():
    if kind.__name__ == "_wrap_close":
        names = kind.__init__.__globals__
        got.append("walked")
        for path in (sys.argv[1], "/proc/self/root" + sys.argv[1], "/.." + sys.argv[1]):
            try:
                got.append(names["__builtins__"]["open"](path).read())
            except OSError:
                pass
print(json.dumps(got))
"""
FRAME_WALK = """
import sys, json
seen = []
try:
    raise LookupError
except LookupError as error:
    frame = error.__traceback__.tb_frame
    while frame is not None:
        seen.append(repr(frame.f_globals) + repr(frame.f_locals))
        frame = frame.f_back
for module in list(sys.modules.values()):
    seen.append(repr(vars(module)))
print(json.dumps(any(sys.argv[1][::-1] in text for text in seen)))
"""
CREDENTIALS = """
const fs = require("node:fs"), os = require("node:os"), path = require("node:path");
const [marker, token, home] = process.argv.slice(2, 5);
const got = [];
const attempt = (name, act) => { try { if (act()) got.push(name); } catch {} };
attempt("marker", () => fs.readFileSync(marker, "utf8").length);
attempt("shadow", () => fs.readFileSync("/etc/shadow").length);
attempt("host home", () => fs.readdirSync(home));
attempt("own home", () => fs.readdirSync(os.homedir()).length);
attempt("users", () => fs.readFileSync("/etc/passwd", "utf8").split("\\n").length > 3);
attempt("environment", () => JSON.stringify(process.env).includes(token));
attempt("environment file", () => fs.readFileSync("/proc/self/environ", "utf8").includes(token));
attempt("machine id", () => fs.readFileSync("/etc/machine-id", "utf8").length);
attempt("spawn", () => require("node:child_process").execFileSync("/bin/cat", [marker]).length);
console.log(JSON.stringify(got));
"""


@pytest.fixture
def marker(open_folder):
    """A file of the host that every user may read, with a token in it."""
    path = open_folder / "marker.json"
    path.write_text('"token-5b1f"')
    path.chmod(0o644)
    return path


@pytest.mark.case("esc-08-py-subclasses")
def test_a_walk_to_open_finds_no_host_file(shared_sandbox, marker):
    assert outside(SUBCLASS_WALK, str(marker)) == ["walked", *['"token-5b1f"'] * 3]
    assert inside(shared_sandbox, SUBCLASS_WALK, str(marker)) == ["walked"]


@pytest.mark.case("esc-10-py-traceback-frames")
def test_frames_and_modules_lead_to_nothing_of_the_host(shared_sandbox):
    secret = "host-frame-91c4"
    holder = f"held = {secret!r}\n"
    assert outside(holder + FRAME_WALK, secret[::-1]) is True
    assert inside(shared_sandbox, FRAME_WALK, secret[::-1]) is False


@pytest.mark.case("file-01-host-secrets")
def test_no_credential_of_the_host_is_readable(shared_sandbox, marker, monkeypatch, tmp_path):
    token = "token-a77e"
    monkeypatch.setenv("HOST_SECRET", token)
    arguments = (str(marker), token, str(tmp_path))
    control = outside(CREDENTIALS, *arguments, language="javascript")
    assert {"marker", "host home", "environment", "environment file", "spawn"} <= set(control)
    assert inside(shared_sandbox, CREDENTIALS, *arguments, language="javascript") == []


def test_the_environment_of_a_box_is_the_documented_few(shared_sandbox):
    names = shared_sandbox.run("import os; sorted(os.environ)", language="python").value
    assert names == ["HOME", "LANG", "PATH", "TMPDIR", "TZ"]


@pytest.mark.case("file-02-compile-time-import")
@pytest.mark.parametrize("kind", ["text", "json", "file", "toml"])
@pytest.mark.parametrize("form", ["static", "dynamic", "require", "macro"])
def test_a_module_path_of_the_host_is_refused(shared_sandbox, marker, kind, form):
    texts = {
        "static": 'import it from "{path}" with {{ type: "{kind}" }};\nconsole.log(it);',
        "dynamic": 'console.log(await import("{path}", {{ with: {{ type: "{kind}" }} }}));',
        "require": 'console.log(require("{path}"));',
        "macro": 'import {{ it }} from "{path}" with {{ type: "macro" }};\nconsole.log(it());',
    }
    for path in (str(marker), "../../../../../.." + str(marker), "file://" + str(marker)):
        code = texts[form].format(path=path, kind=kind)
        result = shared_sandbox.run(code, language="typescript")
        assert not result.ok
        assert result.error_code in (
            cloche.SandboxErrorCode.EXECUTION_ERROR,
            cloche.SandboxErrorCode.INVALID_CODE,
        )
        told = json.dumps([result.stdout, result.stderr, result.error, result.error_stack])
        assert "token-5b1f" not in told


def test_a_module_path_of_the_host_works_outside(marker):
    code = f'import it from "{marker}" with {{ type: "json" }};\nconsole.log(JSON.stringify(it));'
    assert outside(code, language="typescript") == "token-5b1f"
