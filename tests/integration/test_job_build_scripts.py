"""Build scripts of packages that a job allows by name: what runs, what of it is kept."""

import json

import pytest

import job_site
from cloche.model.job import ReasonCode, StepStatus, Verdict
from job_site import JobSite, manifest, open_site, outside
from needs import BOX, JOB, needs

pytestmark = needs(*BOX, *JOB)

SHOW = "find . -type f -not -name '*.json' -not -path './node_modules/.*/lock.yaml' | sort"
MADE = 'console.log("built"); require("fs").writeFileSync("made.txt", "made");'


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    with open_site(tmp_path_factory.mktemp("site")) as site:
        yield site


@pytest.fixture(params=["pnpm", "npm"])
def make(request):
    """Makes a project of one of the package managers."""
    return job_site.project if request.param == "pnpm" else npm_project


def npm_project(*packages, aliases=None, entries=None):
    """Like `job_site.project`, with a package-lock.json; `aliases`: package by another name."""
    named = {each.name: each for each in packages} | (aliases or {})
    wanted = {
        name: each.version if name == each.name else f"npm:{each}" for name, each in named.items()
    }
    installed = {
        f"node_modules/{name}": {
            "version": each.version,
            "integrity": each.integrity,
            "hasInstallScript": True,
            **({"name": each.name} if name != each.name else {}),
        }
        for name, each in named.items()
    }
    root = {"name": "made", "version": "1.0.0", "dependencies": wanted}
    lock = {"lockfileVersion": 3, "packages": {"": root, **installed, **(entries or {})}}
    return {
        "package.json": manifest(job_site.SCRIPTS, dependencies=wanted),
        "package-lock.json": json.dumps(lock),
        "a.test.js": job_site.GOOD_TEST,
    }


def publish(site: JobSite, name, script=MADE, scripts=None, version="1.0.0", **fields):
    files = [("package/index.js", "module.exports = 1;"), ("package/build.js", script)]
    scripts = scripts or {"postinstall": "node build.js"}
    return site.publish(name, files, version, scripts=scripts, **fields)


def look(site: JobSite, files, *names, line=SHOW, **fields):
    steps = [{"name": "look", "shell": line}]
    return site.run(files, steps=steps, build_scripts=list(names), **fields)


def made(ran) -> set[str]:
    return {path.rpartition("/node_modules/")[2] for path in ran.lines("look")}


def test_what_an_allowed_package_builds_in_its_folder_is_there_for_the_steps(site, make):
    files = make(publish(site, "maker"), publish(site, "@s/other"))
    ran = look(site, files, "maker")
    assert ran.verdict is Verdict.PASSED, ran.message
    assert [step.name for step in ran.result.steps] == ["install", "build-scripts", "look"]
    assert "maker/made.txt" in made(ran)
    assert "@s/other/made.txt" not in made(ran)
    assert any("built" in line for line in ran.lines("build-scripts"))
    both = look(site, files, "maker", "@s/other")
    assert {"maker/made.txt", "@s/other/made.txt"} <= made(both)


def test_without_a_word_on_it_nothing_runs(site, make):
    files = make(publish(site, "maker"))
    ran = look(site, files)
    assert [step.name for step in ran.result.steps] == ["install", "look"]
    assert "maker/made.txt" not in made(ran)


def test_the_result_is_kept_beside_the_tree_without_it(site, make):
    files = make(publish(site, "kept"))
    runs = [look(site, files, "kept"), look(site, files, "kept"), look(site, files)]
    built = [run.step("build-scripts").cached for run in runs[:2]]
    assert built == [False, True]
    assert [run.step("install").cached for run in runs] == [False, True, True]
    assert ["kept/made.txt" in made(run) for run in runs] == [True, True, False]
    layers = [run.result.audit["layer"] for run in runs]
    assert layers[0]["build_scripts"] == layers[1]["build_scripts"]
    assert layers[0]["build_scripts"]["key"] != layers[0]["key"] == layers[2]["key"]
    assert len(layers[0]["build_scripts"]["folders"]) == 1
    assert "build_scripts" not in layers[2]


def test_what_is_removed_in_its_folder_is_gone(site, make):
    script = 'require("fs").rmSync("index.js"); require("fs").mkdirSync("lib/a", {recursive: true})'
    ran = look(site, make(publish(site, "remover", script)), "remover", line=f"{SHOW}; find .")
    assert "remover/index.js" not in made(ran)
    assert {"remover/lib/a", "remover/build.js"} <= made(ran)


OUTSIDE = """
const fs = require("fs"), dirname = require("path").dirname;
const victim = fs.realpathSync(require.resolve("victim"));
for (const path of [victim, victim.replace("index.js", "new.js"), "/workspace/a.test.js",
    "/workspace/planted.js", "/workspace/node_modules/.bin/node", "/tmp/planted",
    "/workspace/node_modules/planted/index.js", "node_modules/mine/index.js", "made.txt"]) {
  try {
    fs.mkdirSync(dirname(path), {recursive: true});
    fs.writeFileSync(path, ["EVIL", "WORD"].join(""));
    console.log("wrote", path);
  } catch (error) { console.log(path, error.code); }
}
"""


def test_what_is_written_outside_of_its_folder_is_not_kept(site, make):
    victim = publish(site, "victim", scripts={"test": "true"})
    writer = publish(site, "writer", OUTSIDE, dependencies={"victim": "1.0.0"})
    search = "grep -rl EVILWORD . /tmp || true"
    ran = look(site, make(victim, writer), "writer", line=search)
    assert ran.verdict is Verdict.PASSED, ran.message
    told = ran.lines("build-scripts")
    assert sum("wrote" in line for line in told) == 9
    assert made(ran) == {"writer/made.txt"}
    (note,) = [line for line in told if "not kept" in line]
    assert "victim/new.js" in note
    assert look(site, make(victim, writer), line=search).lines("look") == []


def test_what_it_writes_would_be_there_without_the_box(tmp_path):
    """The control of the test above."""
    files = {"node_modules/victim/index.js": "1", "node_modules/victim/package.json": "{}"}
    script = OUTSIDE.replace("/tmp/p", "/workspace/p").replace("/workspace/", f"{tmp_path}/")
    outside("node build.js", tmp_path, {**files, "build.js": script})
    assert (tmp_path / "node_modules/victim/index.js").read_text() == "EVILWORD"
    assert (tmp_path / "planted.js").exists()


NETWORK = """
const net = require("net"), dns = require("dns"), fs = require("fs"), os = require("os");
const found = [];
const tried = ["PORT", 4873, 53].map((port) => new Promise((done) => {
  const socket = net.connect(Number(port), "127.0.0.1");
  socket.on("connect", () => { found.push(`reached ${port}`); socket.destroy(); done(); });
  socket.on("error", (error) => { found.push(error.code); done(); }); }));
tried.push(new Promise((done) => dns.lookup("registry.test", (error) => {
  found.push(`dns ${error && error.code}`); done(); })));
Promise.all(tried).then(() => fs.writeFileSync("made.txt",
  JSON.stringify({found, env: process.env, links: Object.keys(os.networkInterfaces())})));
"""


def test_a_script_has_no_network_and_no_variables_of_the_host(site, make, monkeypatch):
    monkeypatch.setenv("NPM_TOKEN", "never-shown-to-anyone")
    script = NETWORK.replace("PORT", str(site.registry.port))
    files = make(publish(site, "caller", script))
    ran = look(site, files, "caller", line="cat $(find . -path '*/caller/made.txt')")
    told = ran.printed("look")
    assert [each for each in told["found"] if each.startswith("reached")] == []
    assert told["links"] in ([], ["lo"])
    assert any(each.startswith("dns E") for each in told["found"])
    assert b"never-shown-to-anyone" not in ran.everything()
    assert not {"NPM_TOKEN", "CLOCHE_CACHE_DIR"} & told["env"].keys()


def test_a_script_that_fails_fails_the_job_with_a_reason_of_its_own(site, make):
    files = make(publish(site, "failing", 'console.log("why"); process.exit(3);'))
    for _ in range(2):  # a failure is not kept
        ran = look(site, files, "failing")
        assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.BUILD_SCRIPT_FAILED)
        assert ran.result.failed_step == "build-scripts"
        assert "failing" in ran.message and "no network" in ran.message
        assert any("why" in line for line in ran.lines("build-scripts"))
        assert ran.step("look").status is StepStatus.SKIPPED
    assert look(site, files).verdict is Verdict.PASSED


def test_a_script_without_an_end_meets_the_limit_of_the_job(site, make):
    files = make(publish(site, "endless", "for (;;);"))
    assert look(site, files).verdict is Verdict.PASSED
    ran = look(site, files, "endless", limits={"timeout_ms": 2500})
    assert (ran.verdict, ran.why) == (Verdict.TIMED_OUT, ReasonCode.JOB_TIMEOUT)
    assert ran.result.failed_step == "build-scripts"


@pytest.mark.parametrize(
    "act", ["symlinkSync('/etc', 'out')", "symlinkSync('../../../../../..', 'out')"]
)
def test_a_link_that_leads_out_is_not_taken(site, make, act):
    files = make(publish(site, f"linking{len(act)}", f"require('fs').{act}"))
    ran = look(site, files, f"linking{len(act)}")
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.BUILD_SCRIPT_FAILED)
    assert "leads out" in ran.message


def test_a_folder_that_became_a_link_is_not_followed(site, make):
    script = """
    const fs = require("fs"), here = process.cwd();
    fs.renameSync(here, "/tmp/moved") ; fs.symlinkSync("/workspace", here);
    """
    copy = "cp -r . /tmp/moved; cd /; rm -rf $OLDPWD; ln -s /workspace $OLDPWD"
    package = publish(site, "swapper", script, scripts={"postinstall": copy})
    ran = look(site, make(package), "swapper")
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.BUILD_SCRIPT_FAILED)


def test_scripts_of_dependencies_and_of_the_project_do_not_run(site):
    inner = publish(site, "inner", version="2.0.0")
    outer = publish(site, "outer", dependencies={"inner": "2.0.0"})
    entry = {"version": "2.0.0", "integrity": inner.integrity, "hasInstallScript": True}
    files = npm_project(outer, entries={"node_modules/outer/node_modules/inner": entry})
    lock = json.loads(files["package-lock.json"])
    lock["packages"]["node_modules/outer"]["dependencies"] = {"inner": "2.0.0"}
    files["package-lock.json"] = json.dumps(lock)
    files["package.json"] = files["package.json"].replace(
        '"scripts": {', '"scripts": {"postinstall": "touch ROOT", "prepare": "touch ROOT", '
    )
    ran = look(site, files, "outer")
    assert ran.verdict is Verdict.PASSED, ran.message
    assert {"outer/made.txt", "inner/index.js"} <= made(ran)
    assert "inner/made.txt" not in made(ran)
    assert "./ROOT" not in ran.lines("look")
    assert {"outer/made.txt", "inner/made.txt"} <= made(look(site, files, "outer", "inner"))


def test_a_package_below_a_project_of_a_workspace_is_built_where_it_lies(site):
    top, below = publish(site, "maker"), publish(site, "maker", version="2.0.0")
    x = {"name": "x", "version": "1.0.0", "dependencies": {"maker": "2.0.0"}}
    files = npm_project(
        top,
        entries={
            "": {"name": "made", "version": "1.0.0", "workspaces": ["packages/*"],
                 "dependencies": {"maker": "1.0.0"}},
            "node_modules/x": {"resolved": "packages/x", "link": True},
            "packages/x": x,
            "packages/x/node_modules/maker": {"version": "2.0.0", "integrity": below.integrity},
        },
    )  # fmt: skip
    files["package.json"] = files["package.json"][:-1] + ', "workspaces": ["packages/*"]}'
    files["packages/x/package.json"] = json.dumps({**x, "scripts": {"postinstall": "touch RAN"}})
    ran = look(site, files, "maker")
    assert ran.verdict is Verdict.PASSED, ran.message
    expected = {"./node_modules/maker/made.txt", "./packages/x/node_modules/maker/made.txt"}
    assert expected <= set(ran.lines("look"))
    assert "./packages/x/RAN" not in ran.lines("look")


def test_a_package_under_the_name_of_an_allowed_one_is_not_allowed(site):
    stranger, wanted = publish(site, "stranger"), publish(site, "wanted")
    ran = look(site, npm_project(wanted, aliases={"also": stranger}), "wanted", "also")
    assert "also/made.txt" not in made(ran) and "wanted/made.txt" in made(ran)
    assert any("also is not in package-lock.json" in note for note in ran.notes)
    posing = look(site, npm_project(aliases={"wanted": stranger}), "wanted")
    assert "wanted/made.txt" not in made(posing)
    by_its_name = look(site, npm_project(aliases={"wanted": stranger}), "stranger")
    assert "wanted/made.txt" in made(by_its_name)


def test_programs_of_other_packages_do_not_stand_in_for_the_toolchain(site, make):
    evil = site.publish(
        "evil",
        [("package/bin.js", "#!/usr/bin/sh\necho EVIL\n")],
        bin={"sh": "bin.js", "node": "bin.js", "bash": "bin.js"},
    )
    ran = look(site, make(evil, publish(site, "maker")), "maker")
    assert ran.verdict is Verdict.PASSED, ran.message
    assert "maker/made.txt" in made(ran)
    assert not any("EVIL" in line for line in ran.lines("build-scripts"))


def test_a_program_that_scripts_made_another_kind_of_is_started_as_what_it_is(site, make):
    script = "echo built; printf '#!/usr/bin/sh\\necho native' > bin.js"
    program = "#!/usr/bin/env node\nconsole.log('script')"
    package = site.publish(
        "native",
        [("package/bin.js", program)],
        scripts={"install": script},
        bin={"native": "bin.js"},
    )
    files = make(package)
    if "package-lock.json" in files:
        lock = json.loads(files["package-lock.json"])
        lock["packages"]["node_modules/native"]["bin"] = {"native": "bin.js"}
        files["package-lock.json"] = json.dumps(lock)
    assert look(site, files, line="native").lines("look") == ["script"]
    ran = look(site, files, "native", line="native")
    assert ran.lines("look") == ["native"]
    ends = [line for line in ran.lines("build-scripts") if line.endswith("built")]
    assert len(ends) == 1, "scripts run once, not again when links are made"


def test_a_link_to_a_program_that_a_script_planted_is_not_kept(site):
    script = """
    const fs = require("fs");
    for (const name of fs.readdirSync("/workspace/node_modules/.bin"))
      fs.writeFileSync(`/workspace/node_modules/.bin/${name}`, "#!/usr/bin/sh\\necho PLANTED\\n");
    fs.writeFileSync("/workspace/node_modules/.bin/more", "PLANTED", {mode: 0o755});
    """
    tool = site.publish("tool", [("package/bin.js", "console.log('tool')")], bin="bin.js")
    files = job_site.project(tool, publish(site, "planter", script))
    ran = look(site, files, "planter", line="tool; grep -rl PLANTED node_modules/.bin || true")
    assert ran.verdict is Verdict.PASSED, ran.message
    assert ran.lines("look") == ["tool"]


def test_names_without_scripts_or_not_there_are_told(site, make):
    quiet = publish(site, "quiet", scripts={"test": "true"})
    ran = look(site, make(quiet), "quiet", "nowhere")
    assert ran.verdict is Verdict.PASSED, ran.message
    assert any("nowhere is not in" in note for note in ran.notes)
    assert ran.lines("build-scripts") == ["no package that is allowed to has build scripts here"]


def test_hoisted_packages_of_pnpm_are_not_built(site):
    files = {
        **job_site.project(publish(site, "maker")),
        "pnpm-workspace.yaml": "nodeLinker: hoisted",
    }
    assert look(site, files).verdict is Verdict.PASSED
    ran = look(site, files, "maker")
    assert (ran.verdict, ran.why) == (Verdict.FAILED, ReasonCode.BUILD_SCRIPT_FAILED)
    assert "hoisted" in ran.message
