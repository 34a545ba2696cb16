"""`cloche cache`, `artifacts`, `schema` and the commands that read a job's folder."""

import hashlib
import json
import os
import threading
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from test_layer_store import add

from cloche.cli.main import cli
from cloche.environments.layers import LayerStore
from cloche.errors import InvalidRequestError
from cloche.jobs import running
from cloche.jobs.running import RunningMark, is_running
from cloche.linux.locks import try_lock
from cloche.model.job import JobSpec
from cloche.model.job_fields import make_spec
from cloche.model.job_schema import job_schema
from cloche.model.package import Package
from cloche.store.packages import IN_USE_S, PackageStore
from registry_server import integrity_of

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    folder = tmp_path / "cache"
    folder.mkdir(mode=0o700)
    monkeypatch.setenv("CLOCHE_CACHE_DIR", str(folder))
    return folder


def call(*words):
    """(exit code, what was printed)."""
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    return result.return_value or 0, result.output


def keep(folder, name, data, age_s=0.0):
    store = PackageStore(folder / "packages")
    with store.receive("https://registry.test/", Package(name, "1.0.0", integrity_of(data))) as new:
        new.write(data)
        path = new.keep()
    os.utime(path, (time.time() - age_s,) * 2)
    return path


# The cache


def test_a_list_shows_layers_and_what_packages_take(cache):
    assert "0 layers" in call("cache", "list")[1]
    add(LayerStore(cache), "a" * 64).close()
    keep(cache, "x", b"12345")
    text = call("cache", "list")[1]
    assert text.startswith("aaaaaaaaaaaa ")
    assert "1 layer, 5 B; packages, 5 B" in text
    document = json.loads(call("cache", "list", "--json")[1])
    (layer,) = document["layers"]
    assert (layer["key"], layer["is_used"]) == ("a" * 64, False)
    assert document["packages_bytes"] == 5


def test_a_layer_in_use_is_shown_so_and_outlives_pruning(cache):
    used = add(LayerStore(cache), "u")
    add(LayerStore(cache), "other").close()
    assert "in use" in call("cache", "list")[1]
    assert "removed 1 layer, 5 B" in call("cache", "prune", "--limit-mb", "0")[1]
    used.close()
    assert "removed 1 layer, 5 B" in call("cache", "prune", "--limit-mb", "0")[1]


def test_packages_that_were_just_used_are_not_pruned(cache):
    old = keep(cache, "old", b"1" * 100, age_s=2 * IN_USE_S)
    new = keep(cache, "new", b"2" * 100)
    assert "removed 1 package, 100 B" in call("cache", "prune", "--limit-mb", "0")[1]
    assert (old.exists(), new.exists()) == (False, True)


def test_packages_within_the_limit_stay_and_the_oldest_go_first(cache):
    paths = [
        keep(cache, f"p{age}", bytes([age]) * 400_000, (9 - age) * IN_USE_S) for age in (3, 1, 2)
    ]
    assert call("cache", "prune", "--limit-mb", "1")[0] == 0
    assert [path.exists() for path in paths] == [True, False, True]


def test_the_limit_is_a_setting_and_a_wrong_one_is_named(cache, monkeypatch):
    add(LayerStore(cache), "k").close()
    monkeypatch.setenv("CLOCHE_CACHE_LIMIT_MB", "0")
    assert "removed 1 layer" in call("cache", "prune")[1]
    for wrong in ("-1", "many", "1.5", "9" * 30):
        monkeypatch.setenv("CLOCHE_CACHE_LIMIT_MB", wrong)
        with pytest.raises(Exception, match="CLOCHE_CACHE_LIMIT_MB is no whole number"):
            call("cache", "list")


def test_a_damaged_layer_is_found_and_removed(cache):
    add(LayerStore(cache), "good").close()
    add(LayerStore(cache), "bad").close()
    assert call("cache", "verify") == (0, "2 layers as made, 0 damaged\n")
    path = cache / "layers/bad/tree/node_modules/b.js"
    times = path.stat()
    path.write_bytes(b"33")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    code, text = call("cache", "verify")
    assert code == 1
    assert "bad is damaged: removed" in text
    assert call("cache", "verify") == (0, "1 layer as made, 0 damaged\n")


# What a job has left


@pytest.fixture
def out(tmp_path):
    folder = tmp_path / "out"
    (folder / "artifacts/dist").mkdir(parents=True)
    (folder / "artifacts/dist/a.txt").write_bytes(b"abc")
    entry = {"path": "dist/a.txt", "size_bytes": 3, "sha256": hashlib.sha256(b"abc").hexdigest()}
    manifest = {"artifacts": [entry], "skipped": {"dist/x": "a link"}, "skipped_count": 1}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    (folder / "audit.json").write_text('{"verdict": "passed"}')
    lines = [("build", 0, "one"), ("build", 4, "tw\x1b[31mo"), ("test", 8, "three")]
    text = "".join(
        json.dumps({"time": 1.0, "step": step, "stream": "stdout", "offset": at, "text": line})
        + "\n"
        for step, at, line in lines
    )
    (folder / "log.ndjson").write_text(text)
    return folder


def test_artifacts_as_delivered_are_verified_and_listed(out):
    assert call("artifacts", "verify", str(out)) == (0, "1 artifact as delivered\n")
    text = call("job", "artifacts", str(out))[1]
    assert "3 B  dist/a.txt" in text
    assert "skipped  dist/x: a link" in text


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda place: (place / "dist/a.txt").write_bytes(b"abd"), "is not what was delivered"),
        (lambda place: (place / "dist/a.txt").write_bytes(b"abcd"), "is not what was delivered"),
        (lambda place: (place / "dist/a.txt").unlink(), "dist/a.txt: is missing"),
        (lambda place: (place / "more").write_text(""), "more: was not delivered by the job"),
        (lambda place: (place / "\udcff").write_text(""), "was not delivered by the job"),
        (lambda place: (place / "link").symlink_to("dist/a.txt"), "link: was not delivered"),
        (lambda place: (place / "folder").symlink_to("dist"), "folder: was not delivered"),
        (
            lambda place: ((place / "dist/a.txt").unlink(),
                           (place / "dist/a.txt").symlink_to("/etc/hostname")),
            "is not what was delivered",
        ),
    ],
)  # fmt: skip
def test_artifacts_that_were_changed_are_found(out, change, told):
    change(out / "artifacts")
    code, text = call("artifacts", "verify", str(out))
    assert code == 1
    assert told in text


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"artifacts": [{}]}', '{"artifacts": 1}', "[" * 100_000]
)
def test_a_folder_without_a_manifest_is_the_callers_fault(out, text):
    (out / "manifest.json").write_text(text)
    for command in (("artifacts", "verify"), ("job", "artifacts")):
        with pytest.raises(InvalidRequestError):
            call(*command, str(out))


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("../manifest.json", "leads out"),
        ("/etc/hostname", "leads out"),
        ("a\0b", "is no name of a file"),
        ("\ud800", "is no name of a file"),
    ],
)
def test_a_manifest_that_names_what_cannot_be_there_is_read_nowhere_else(out, path, told):
    named = {"path": path, "size_bytes": 1, "sha256": ""}
    (out / "manifest.json").write_text(json.dumps({"artifacts": [named]}))
    code, text = call("artifacts", "verify", str(out))
    assert code == 1
    assert told in text


@pytest.mark.parametrize("data", [b"text\n", b"\xff\n", b"{}\n", b"[1]\n", b"[" * 9999 + b"\n"])
def test_what_is_no_log_is_the_callers_fault(out, data):
    (out / "log.ndjson").write_bytes(data)
    with pytest.raises(InvalidRequestError, match="is no log of a job"):
        call("job", "logs", str(out))


def test_a_log_is_printed_harmless_and_by_step_and_offset(out):
    assert call("job", "logs", str(out))[1] == "[build] one\n[build] two\n[test] three\n"
    assert call("job", "logs", str(out), "--step", "test")[1] == "[test] three\n"
    assert call("job", "logs", str(out), "--from", "5")[1] == "[test] three\n"
    first = call("job", "logs", str(out), "--json")[1].splitlines()[0]
    assert json.loads(first)["text"] == "one"
    with pytest.raises(Exception, match="no log of a job"):
        call("job", "logs", str(out / "nowhere"))


def test_a_log_is_followed_until_the_job_has_ended(out):
    mark = RunningMark(out)

    def go_on():
        time.sleep(0.3)
        line = {"time": 2.0, "step": "late", "stream": "stdout", "offset": 14, "text": "more"}
        with (out / "log.ndjson").open("a") as writer:
            text = json.dumps(line) + "\n"
            writer.write(text[:20])
            writer.flush()
            time.sleep(0.3)
            writer.write(text[20:])
        mark.close()

    thread = threading.Thread(target=go_on)
    thread.start()
    text = call("job", "logs", str(out), "-f")[1]
    thread.join()
    assert text.endswith("[late] more\n")


def test_a_job_that_runs_can_be_asked_to_end_and_one_that_does_not_cannot(out):
    with pytest.raises(Exception, match="no job runs in"):
        call("job", "abort", str(out))
    mark = RunningMark(out)
    assert is_running(out)

    def end_when_asked():
        while not mark.is_abort_asked():
            time.sleep(0.01)
        mark.close()

    thread = threading.Thread(target=end_when_asked)
    thread.start()
    assert call("job", "abort", str(out)) == (0, "passed\n")
    thread.join()
    assert not is_running(out)
    assert sorted(path.name for path in out.iterdir() if path.name.startswith(".")) == []


def test_a_look_whether_a_job_runs_does_not_take_its_mark_away(out):
    """Who looks holds the mark's lock for a moment: the job waits for it."""
    held = try_lock(out / ".running")
    looking = threading.Timer(0.2, os.close, [held])
    looking.start()
    mark = RunningMark(out)
    looking.join()
    assert is_running(out)
    mark.close()


def test_an_abort_that_came_too_late_leaves_nothing(out, monkeypatch):
    answers = iter([True, False])
    monkeypatch.setattr(running, "is_running", lambda _: next(answers))
    running.ask_abort(out)
    assert not (out / ".abort").exists()


def test_the_mark_of_a_job_that_was_killed_is_none(out):
    (out / ".running").touch()
    assert not is_running(out)
    assert not (out / ".running").exists()


# The schema


def test_the_schema_is_one_and_takes_what_the_model_takes():
    document = json.loads(call("schema", "job")[1])
    assert document == job_schema()
    assert document["$schema"].startswith("https://json-schema.org/")
    fields = set(JobSpec.__dataclass_fields__)
    assert set(document["properties"]) == fields
    step = document["properties"]["steps"]["anyOf"][0]["items"]
    assert step["properties"]["timeout_ms"]["default"] == 300_000
    assert step["required"] == ["name"]
    assert document["properties"]["lockfile"]["enum"] == [
        *("template", "bundle", "refuse_change", "resolve"),
    ]
    assert all("description" in each for each in document["properties"].values())


def test_the_defaults_of_the_schema_make_the_default_job():
    properties = job_schema()["properties"]
    given = {name: each["default"] for name, each in properties.items() if "default" in each}
    assert make_spec({"bundle": ".", **given}) == JobSpec(".")


def test_validate_says_what_would_be_done_or_why_not(tmp_path):
    project = tmp_path / "project"
    project.mkdir()
    (project / "package.json").write_text('{"scripts": {"test": "node --test"}}')
    code, text = call("job", "validate", str(project), "--without", "build")
    assert code == 0
    assert "test: pnpm run test" in text
    (project / "link").symlink_to("/etc/passwd")
    code, text = call("job", "validate", str(project))
    assert code == 2
    assert text.startswith("rejected: bundle: 'link' is a link")
    assert Path(project, "link").is_symlink()
