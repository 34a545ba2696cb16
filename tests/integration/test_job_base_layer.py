"""A lockfile that differs in little costs little: its layer starts from an earlier one, and is
nothing but what an install from nothing gives.
"""

import json
import shutil
import subprocess

import pytest

from cloche.environments.layers import LayerStore
from cloche.environments.runtimes import require_runtime
from cloche.jobs.installers.pnpm import _FORGET
from cloche.model.job import ReasonCode, Verdict
from job_site import GOOD_TEST, SCRIPTS, lockfile, manifest, open_site, project
from needs import BOX, JOB, needs
from registry_server import make_tarball

pytestmark = needs(*BOX, *JOB)

PROGRAM = "#!/usr/bin/env node\nconsole.log('tool')\n"


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture
def site(whole):
    shutil.rmtree(whole.cache_folder / "layers", ignore_errors=True)
    return whole


@pytest.fixture(scope="module")
def packages(whole):
    plain = [
        whole.publish(f"part-{number}", [("package/index.js", f"module.exports = {number};")])
        for number in range(5)
    ]
    tool = whole.publish("@s/tool", [("package/bin.js", PROGRAM)], bin={"tool": "bin.js"})
    return [*plain, tool]


@pytest.fixture(scope="module")
def newer(whole):
    return whole.publish("part-1", [("package/index.js", "module.exports = 'newer';")], "1.1.0")


def layer_of(ran):
    assert ran.verdict is Verdict.PASSED, ran.message
    return ran.result.audit["layer"]


def forget_layers(site):
    shutil.rmtree(site.cache_folder / "layers")


CHANGES = {
    "one more": (slice(0, 5), slice(0, 6)),
    "one less": (slice(0, 6), slice(0, 5)),
    "another at the front": (slice(0, 5), slice(1, 6)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_layer_that_starts_from_another_holds_what_one_from_nothing_does(site, packages, change):
    before, after = (project(*packages[part]) for part in change)
    base = layer_of(site.run(before))
    changed = layer_of(site.run(after))
    assert (base["base"], changed["base"]) == (None, base["key"])
    forget_layers(site)
    anew = layer_of(site.run(after))
    assert anew["base"] is None
    assert (changed["key"], changed["sha256"]) == (anew["key"], anew["sha256"])
    assert changed["sha256"] != base["sha256"]


def test_another_version_of_a_package_replaces_it(site, packages, newer):
    before = project(*packages)
    after = project(*(newer if each.name == "part-1" else each for each in packages))
    base = layer_of(site.run(before))
    changed = site.run(after, steps=[{"name": "look", "shell": "node -p \"require('part-1')\""}])
    assert layer_of(changed)["base"] == base["key"]
    assert changed.lines("look") == ["newer"]
    (tree,) = [tree for tree in site.trees() if changed.result.audit["layer"]["key"] in str(tree)]
    assert not (tree / "node_modules/.pnpm/part-1@1.0.0").exists()
    forget_layers(site)
    assert layer_of(site.run(after))["sha256"] == layer_of(changed)["sha256"]


def workspace(packages, more):
    """Two packages of a project's own, the second with dependencies as they are given."""
    files = project(*packages)
    text = json.loads(lockfile([*packages, *more]))
    groups = {each.name: {"specifier": each.version, "version": each.version} for each in packages}
    text["importers"] = {
        ".": {"dependencies": groups},
        "packages/one": {
            "dependencies": {
                each.name: {"specifier": each.version, "version": each.version} for each in more
            }
        },
    }
    files["pnpm-workspace.yaml"] = "packages: [packages/*]\n"
    files["packages/one/package.json"] = manifest(
        name="one", dependencies={each.name: each.version for each in more}
    )
    files["pnpm-lock.yaml"] = json.dumps(text)
    return files


def test_the_links_of_every_package_of_a_workspace_are_those_of_its_lockfile(site, packages):
    before, after = workspace(packages[:4], packages[3:6]), workspace(packages[1:5], packages[2:3])
    base = layer_of(site.run(before))
    changed = layer_of(site.run(after))
    assert changed["base"] == base["key"]
    forget_layers(site)
    assert layer_of(site.run(after))["sha256"] == changed["sha256"]


def test_only_what_the_earlier_layer_lacks_is_fetched(site, packages):
    layer_of(site.run(project(*packages[:5])))
    shutil.rmtree(site.cache_folder / "packages")
    before = len(site.registry.paths())
    ran = site.run(project(*packages))
    asked = [path for path in site.registry.paths()[before:] if path.endswith(".tgz")]
    assert [path.rpartition("/")[2] for path in asked] == ["tool-1.0.0.tgz"]
    assert layer_of(ran)["packages_count"] == 1
    assert any("has 5 of the 6 packages" in line for line in ran.lines("install"))


@pytest.mark.case("ins-14-store-poisoning")
def test_a_layer_shares_no_file_with_the_one_that_it_started_from(site, packages):
    first = site.run(project(*packages[:5]))
    look = "find node_modules/ -type f -links +1; echo EVIL > node_modules/part-0/index.js"
    second = site.run(project(*packages), steps=[{"name": "look", "shell": look}])
    assert layer_of(second)["base"] == layer_of(first)["key"]
    assert second.lines("look") == []
    trees = {tree.parent.name: tree for tree in site.trees()}
    path = "node_modules/.pnpm/part-0@1.0.0/node_modules/part-0/index.js"
    files = [trees[layer_of(ran)["key"]] / path for ran in (first, second)]
    assert not files[0].samefile(files[1])
    store = LayerStore(site.cache_folder)
    assert store.remove(layer_of(first)["key"])
    assert files[1].read_text() == "module.exports = 0;"
    assert store.verify(layer_of(second)["key"])
    assert site.run(project(*packages)).step("install").cached


@pytest.mark.parametrize(
    ("domain", "settings"),
    [("other", {}), ("local", {"pnpm-workspace.yaml": "hoist: false\n"})],
    ids=["trust domain", "settings"],
)
def test_nothing_is_shared_with_other_trust_domains_or_settings(site, packages, domain, settings):
    layer_of(site.run(project(*packages[:5])))
    other = site.run({**project(*packages), **settings}, trust_domain=domain)
    assert layer_of(other)["base"] is None
    control = site.run({**project(*packages[:4]), **settings}, trust_domain=domain)
    assert layer_of(control)["base"] == layer_of(other)["key"]


def test_a_package_that_only_bears_the_same_name_is_no_ground_to_stand_on(site, packages):
    layer_of(site.run(project(*packages)))
    data = make_tarball("part-0", "1.0.0", {"index.js": "module.exports = 'republished';"})
    republished = site.registry.add("part-0", "1.0.0", data)
    try:
        ran = site.run(
            project(republished, *packages[1:]),
            steps=[{"name": "look", "shell": "node -p \"require('part-0')\""}],
        )
        assert layer_of(ran)["base"] is None
        assert ran.lines("look") == ["republished"]
    finally:
        whole = [("package/index.js", "module.exports = 0;")]
        assert site.publish("part-0", whole) == packages[0]


def test_an_earlier_layer_fails_no_job(site, packages, monkeypatch):
    monkeypatch.setattr("cloche.jobs.installers.pnpm._RENEW", "echo in the way; exit 3")
    layer_of(site.run(project(*packages[:5])))
    ran = site.run(project(*packages))
    assert layer_of(ran)["base"] is None
    assert "in the way" in ran.lines("install")  # the control: it was tried
    step, log = ran.step("install"), (ran.out / "log.ndjson").read_text().splitlines()
    offsets = [line["offset"] for line in map(json.loads, log) if line["step"] == "install"]
    assert offsets[0] == step.log_offset_bytes
    assert offsets[-1] < step.log_offset_bytes + step.log_bytes


def test_a_lockfile_that_does_not_fit_is_told_without_a_second_try(site, packages):
    layer_of(site.run(project(*packages[:5])))
    files = project(*packages)
    wanted = {each.name: "2.0.0" for each in packages}
    files["package.json"] = manifest(SCRIPTS, dependencies=wanted)
    ran = site.run({**files, "a.test.js": GOOD_TEST})
    assert ran.why is ReasonCode.LOCKFILE_OUTDATED
    assert sum("starts from layer" in line for line in ran.lines("install")) == 1


def test_what_pnpm_notes_of_time_and_order_is_taken_out(tmp_path):
    texts = set()
    for number, order in enumerate((["b", "a"], ["a", "b"])):
        modules = tmp_path / str(number) / "node_modules"
        modules.mkdir(parents=True)
        state = {
            "skipped": order,
            "ignoredBuilds": order,
            "prunedAt": str(number),
            "kept": order[:0],
        }
        (modules / ".modules.yaml").write_text(json.dumps(state))
        when = {"lastValidatedTimestamp": number, "kept": 1}
        (modules / ".pnpm-workspace-state-v1.json").write_text(json.dumps(when))
        node = require_runtime("node").host_path
        subprocess.run([node, "-e", _FORGET], cwd=modules.parent, check=True)
        texts.add(tuple(file.read_text() for file in sorted(modules.iterdir())))
    (told,) = texts
    assert json.loads(told[0])["ignoredBuilds"] == ["a", "b"]
    assert json.loads(told[1]) == {"lastValidatedTimestamp": 0, "kept": 1}
