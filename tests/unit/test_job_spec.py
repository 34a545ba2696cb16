"""A job's fields are checked when they are given; what is silent is read from the project."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from cloche.errors import InvalidRequestError
from cloche.jobs.project import yaml_document
from cloche.jobs.project.manifest import MANIFEST_BYTES_LIMIT, read_manifest
from cloche.jobs.project.spec import SPEC_BYTES_LIMIT, JobSteps, complete_steps, read_spec_file
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import (
    Egress,
    JobSpec,
    LockfileRule,
    ReasonCode,
    RegistryRule,
    Resolve,
    Service,
    Step,
    Verdict,
)
from cloche.model.job_fields import check_spec, make_spec
from cloche.model.policy import JobLimits

DOCUMENT = Path(__file__).parents[2] / "docs/jobs.md"
HUGE = 10**5000
BAD_INTEGERS = [-1, 0, 1.0, float("nan"), float("inf"), True, "5", None, [], HUGE, -HUGE]
STEP = {"name": "test", "shell": "true"}
SERVICE = {"name": "a", "shell": "true", "port": 80}

WRONG_OF_JOB: dict[str, list[Any]] = {
    "bundle": ["", None, 1, True, [], b"PK", "a\0", "\ud800", {1: "x"}, {"a": 1}, {"a": []}],
    "template": ["", 1, True, [], "a\0", "\ud800", {"a": "x"}],
    "lockfile": [None, "", "qemu", 1, True, []],
    "registry": [None, "", "closed", 1, True, []],
    "resolve": [None, 1, [], "x", {"x": 1}, {"allow": "a"}, {"allow": ["/a"]}, {"allow": [1]},
                {"minimum_age_hours": -1}, {"minimum_age_hours": True}, {"minimum_age_hours": 1.5}],
    "build_scripts": ["esbuild", [1], [""], ["a b"], ["../a"], ["@a"], {"a": 1}, None],
    "steps": ["test", {}, [], 1, [1], [None], [STEP, STEP], [STEP] * 65],
    "without": ["test", {"a": 1}, [1], [True], ["a b"], [""], ["-x"], ["x" * 65], 5, None],
    "artifacts": ["dist/**", [1], ["/dist"], ["../x"], ["a/../b"], [""], ["dist/"], ["./dist"],
                  ["a\0"], ["\ud800"], ["x" * 1025], ["a"] * 257, {"a": 1}],
    "limits": [None, 1, "x", [], {"memory": 1}, {1: 1}],
    "egress": [None, 1, "x", [], {"allow": "a.test"}, {"allow": [1]}, {"allow": ["a\0"]},
               {"allow": ["a.test"] * 257}, {"registry": "open"}, {"intercept": True}, {"x": 1}],
    "step_timeout_ms": [None, 0, -1, True, 1.5, "5"],
    "trust_domain": [None, "", 1, "a\n", "x" * 201],
}  # fmt: skip
WRONG_OF_STEP: dict[str, list[Any]] = {
    "name": [None, "", 1, True, "a b", "a/b", "..", ".a", "-a", "a\n", "x" * 65, "é", "install",
             "[x]", "\ud800"],
    "argv": ["node", [], [""], ["", "a"], [1], ["a\0"], ["\ud800"], [None], ["x" * 100_000], {}],
    "shell": ["", "  ", 1, ["a"], "a\0b", "\ud800", "x" * 100_000],
    "timeout_ms": [86_400_001, *BAD_INTEGERS],
    "env": [None, [], "A=B", {"": "x"}, {"A=B": "x"}, {"A B": "x"}, {"1A": "x"}, {1: "x"},
            {"A": 3000}, {"A": True}, {"A": None}, {"A": "\0"}, {"A": "\ud800"}, {"é": "x"},
            {"A": "x" * 100_000}],
    "keeps": ["dist", [1], ["/x"], [".."], ["x/"], None],
    "reports": ["junit.xml", [1], ["/x"], [".."], ["x/"], None],
    "expects_tests": [0, 1, "yes", []],
    "egress": [1, "x", [], {"allow": "a.test"}, {"allow": [1]}, {"registry": "open"}],
    "idle_timeout_ms": [86_400_001, *[bad for bad in BAD_INTEGERS if bad is not None]],
    "allow_failure": [None, 0, 1, "yes", []],
    "always": [None, 0, 1, "yes", []],
    "services": [None, {}, "x", [1], [SERVICE, SERVICE], [{**SERVICE, "name": "b"}, SERVICE],
                 [SERVICE] * 9],
}  # fmt: skip
WRONG_OF_SERVICE: dict[str, list[Any]] = {
    "name": [None, "", 1, "a b", "[x]"],
    "shell": ["", 1, ["a"], "a\0b"],
    "port": [0, 65_536, -1, True, "80", None, 1.5],
    "ready_timeout_ms": [86_400_001, *BAD_INTEGERS],
    "env": [None, [], {"A B": "x"}, {"A": 1}],
}
WRONG_OF_LIMITS: dict[str, list[Any]] = {
    "memory_mb": [15, 2**20 + 1, *BAD_INTEGERS],
    "pids_count": [65_537, *BAD_INTEGERS],
    "cpu_count": [0, -1, 0.001, float("nan"), float("inf"), True, "1", 1025],
    "scratch_mb": [2**20 + 1, *BAD_INTEGERS],
    "scratch_inodes_count": [10**9, *BAD_INTEGERS],
    "timeout_ms": [86_400_001, *BAD_INTEGERS],
    "log_mb": [2**20 + 1, *BAD_INTEGERS],
    "artifacts_mb": [2**20 + 1, *BAD_INTEGERS],
    "artifacts_count": [10**7, *BAD_INTEGERS],
    "egress_mb": [2**20 + 1, *BAD_INTEGERS],
    "connections_count": [1_025, *BAD_INTEGERS],
}


def cases(table: dict[str, list[Any]]) -> list[Any]:
    return [
        pytest.param(name, value, id=f"{name}-{index}")
        for name, values in table.items()
        for index, value in enumerate(values)
    ]


def refused(fields: Any) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        make_spec(fields)
    assert len(caught.value.message) < 500
    assert caught.value.message.isprintable()
    assert caught.value.retry_safe
    return caught.value.message


def test_the_tables_below_know_every_field() -> None:
    for table, kind in (
        (WRONG_OF_JOB, JobSpec),
        (WRONG_OF_STEP, Step),
        (WRONG_OF_LIMITS, JobLimits),
    ):
        assert set(table) == {field.name for field in dataclasses.fields(kind)}


@pytest.mark.case("api-11-timeout-values")
@pytest.mark.parametrize(("name", "value"), cases(WRONG_OF_JOB))
def test_a_wrong_field_of_a_job_is_refused_by_its_name(name: str, value: Any) -> None:
    make_spec({"bundle": "."})  # the control
    assert refused({"bundle": ".", name: value}).startswith(name)


@pytest.mark.parametrize(("name", "value"), cases(WRONG_OF_STEP))
def test_a_wrong_field_of_a_step_is_refused_by_its_name(name: str, value: Any) -> None:
    good = {"name": "x", "argv": ["node"]} if name == "argv" else {"name": "x", "shell": "true"}
    make_spec({"bundle": ".", "steps": [good]})  # the control
    assert refused({"bundle": ".", "steps": [{**good, name: value}]}).startswith(f"steps[0].{name}")


@pytest.mark.parametrize(("name", "value"), cases(WRONG_OF_SERVICE))
def test_a_wrong_field_of_a_service_is_refused_by_its_name(name: str, value: Any) -> None:
    good = {**STEP, "services": [SERVICE]}
    make_spec({"bundle": ".", "steps": [good]})  # the control
    wrong = {**STEP, "services": [{**SERVICE, name: value}]}
    assert refused({"bundle": ".", "steps": [wrong]}).startswith(f"steps[0].services[0].{name}")


@pytest.mark.parametrize(("name", "value"), cases(WRONG_OF_LIMITS))
def test_a_wrong_limit_is_refused_by_its_name(name: str, value: Any) -> None:
    assert refused({"bundle": ".", "limits": {name: value}}).startswith(f"limits.{name}")
    with pytest.raises(InvalidRequestError, match=f"limits.{name}"):
        check_spec(JobSpec(".", limits=JobLimits(**{name: value})))


def test_all_fields_together_make_the_spec_that_they_say() -> None:
    spec = make_spec(
        {
            "bundle": {"package.json": "{}", "a.bin": b"\xff"},
            "steps": [
                {
                    "name": "check",
                    "argv": ["node", "--test", ""],
                    "timeout_ms": 1,
                    "env": {"_A1": "é\n"},
                    "keeps": ["dist/**"],
                    "expects_tests": True,
                    "idle_timeout_ms": 5,
                    "allow_failure": True,
                    "always": True,
                    "services": [{"name": "db", "argv": ["db"], "port": 1, "ready_timeout_ms": 2}],
                },
                {"name": "b.u-i_ld", "shell": "a | b\nc", "egress": {"allow": ["a.test:8080"]}},
            ],
            "egress": {"allow": ["*.b.test"]},
            "without": ["check"],
            "artifacts": [],
            "limits": {"memory_mb": 16, "cpu_count": 0.5, "timeout_ms": 86_400_000},
            "trust_domain": "ours",
            "backend": "namespaces",
            "template": "base.tar.gz",
            "lockfile": "bundle",
            "resolve": {"allow": ["react", "@a/b"], "minimum_age_hours": 0},
            "registry": "open",
            "build_scripts": ["esbuild"],
        }
    )
    assert spec == JobSpec(
        bundle={"package.json": "{}", "a.bin": b"\xff"},
        steps=(
            Step(
                "check",
                argv=("node", "--test", ""),
                timeout_ms=1,
                env={"_A1": "é\n"},
                keeps=("dist/**",),
                expects_tests=True,
                idle_timeout_ms=5,
                allow_failure=True,
                always=True,
                services=(Service("db", 1, argv=("db",), ready_timeout_ms=2),),
            ),
            Step("b.u-i_ld", shell="a | b\nc", egress=Egress(("a.test:8080",))),
        ),
        egress=Egress(("*.b.test",)),
        without=("check",),
        artifacts=(),
        limits=JobLimits(memory_mb=16, cpu_count=0.5, timeout_ms=86_400_000),
        trust_domain="ours",
        template="base.tar.gz",
        lockfile=LockfileRule.BUNDLE,
        resolve=Resolve(("react", "@a/b"), 0),
        registry=RegistryRule.OPEN,
        build_scripts=("esbuild",),
    )


@pytest.mark.parametrize(
    "step",
    [{"name": "x"}, {"name": "x", "shell": "a", "argv": ["a"]}, {"name": "x", "argv": None}],
)
def test_a_step_has_either_a_line_or_arguments(step: dict[str, Any]) -> None:
    assert "either `argv`, a list, or `shell`, a line" in refused({"bundle": ".", "steps": [step]})


@pytest.mark.parametrize(
    ("fields", "hint"),
    [
        ({"bundel": "."}, "bundel: is no such field; did you mean `bundle`?"),
        ({"bundle": ".", "limits": {"memory": 1}}, "did you mean `memory_mb`?"),
        ({"bundle": ".", "steps": [{"name": "a", "run": "b"}]}, "did you mean `shell`?"),
        ({"bundle": ".", "steps": [{"name": "a", "timeout": 1}]}, "did you mean `timeout_ms`?"),
        ({"bundle": ".", "zzz": 1}, "known: bundle, steps"),
        ({"bundle": ".", "x" * 5000: 1}, "is no such field"),
        ({"bundle": ".", 5: 1}, "5: is no such field"),
        ({}, "bundle: is missing"),
        ([], "the job: must be names and their values, not a list"),
        ({"bundle": ".", "steps": [{"shell": "x"}]}, "steps[0].name: is missing"),
    ],
)
def test_an_unknown_field_is_refused_with_what_may_have_been_meant(fields: Any, hint: str) -> None:
    assert hint in refused(fields)


@pytest.mark.parametrize("name", ["secrets", "redact", "isolation", "backend"])
def test_a_field_of_later_versions_is_refused_and_not_ignored(name: str) -> None:
    message = refused({"bundle": ".", name: "qemu"})
    assert message.startswith(f"{name}: ")
    assert "this version" in message


def test_a_steps_field_of_later_versions_is_refused_and_not_ignored() -> None:
    message = refused({"bundle": ".", "steps": [{**STEP, "secrets": ["x"]}]})
    assert message.startswith("steps[0].secrets: is not there in this version")


def test_a_spec_made_by_hand_is_checked_like_one_from_a_file() -> None:
    check_spec(JobSpec(".", steps=(Step("a", shell="b"),)))  # the control
    for spec in (
        JobSpec(".", steps=(Step("a", shell="b", timeout_ms=True),)),
        JobSpec(".", steps=("a",)),  # type: ignore[arg-type]
        JobSpec(".", limits=None),  # type: ignore[arg-type]
        "spec",
    ):
        with pytest.raises(InvalidRequestError):
            check_spec(spec)  # type: ignore[arg-type]


# The text of a spec

YAML = b"""\
# a comment
bundle: {package.json: '{}'}
steps:
  - name: test
    shell: |
      pnpm exec vitest run
      echo done
    env: {ON: 'yes', EMPTY: ''}
artifacts: [dist/**, "*.txt"]
limits: {cpu_count: 1.5, memory_mb: 512}
"""


def test_a_spec_in_yaml_and_in_json_say_the_same() -> None:
    fields = read_spec_file(YAML, "cloche.yaml")
    assert fields["steps"][0]["shell"] == "pnpm exec vitest run\necho done\n"
    assert fields["steps"][0]["env"] == {"ON": "yes", "EMPTY": ""}
    assert fields["limits"] == {"cpu_count": 1.5, "memory_mb": 512}
    for indent in (None, 1, "\t"):
        assert read_spec_file(json.dumps(fields, indent=indent).encode(), "a.json") == fields
    assert read_spec_file(json.dumps(fields, indent=1).encode(), "a.yaml") == fields
    assert make_spec(fields).limits.memory_mb == 512


def test_plain_words_of_yaml_are_what_they_look_like() -> None:
    text = b"a: [yes, no, on, 2024-01-01, 1.2.3, 0x10, 012, 1:30, 1_0, -5, 1.5, true, null, ~]"
    assert read_spec_file(text, "x.yaml")["a"] == [
        "yes", "no", "on", "2024-01-01", "1.2.3", "0x10", 12, "1:30", "1_0", -5, 1.5, True, None,
        None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"", "must hold names and values"),
        (b"# nothing", "must hold names and values"),
        (b"- a", "must hold names and values"),
        (b"a: 1\nb: &x 2", "line 2, column 4: anchors and aliases"),
        (b"a: &x [x]\nb: [*x, *x]", "anchors and aliases"),
        (b"a: !!python/object/apply:os.system [id]", "line 1, column 4: tags"),
        (b"a: 1\nb:\n  c: 1\n  c: 2", "line 4, column 3: the key 'c' is there twice"),
        (b"a: {b: 1, b: 1}", "the key 'b' is there twice"),
        (b"a: 1\n---\nb: 1", "line 2, column 1: a second document"),
        (b"? [a]\n: b", "a key must be a text"),
        (b"a: b: c", "line 1, column 5: mapping values are not allowed"),
        (b"a: [", "line "),
        (b"\ta: 1", "line 1, column 1"),
        (b"a: \x07", "l characters are not allowed"),
        (b"a: \xff", "byte 3 is not UTF-8"),
        (b"a: " + b"[" * 100, "nested deeper than 32 levels"),
        (b"a: " + b"[" * 200_000, "nest"),
        (b"a: " + b"9" * 5000, "a number is too large"),
        (b"a: '" + b"x" * SPEC_BYTES_LIMIT + b"'", "over 1000000"),
    ],
)
@pytest.mark.parametrize("loader", [yaml.SafeLoader, yaml_document._Loader])
def test_yaml_with_surprises_is_refused_with_the_position(
    text: bytes, why: str, loader: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(yaml_document, "_Loader", loader)
    with pytest.raises(InvalidRequestError) as caught:
        read_spec_file(text, "cloche.yaml")
    assert caught.value.message.startswith("cloche.yaml: ")
    assert why in caught.value.message
    assert len(caught.value.message) < 300


# What the project says


def project(**scripts: str) -> dict[str, bytes]:
    return {"package.json": json.dumps({"scripts": scripts}).encode()}


def names_of(found: JobSteps) -> list[str]:
    return [step.name for step in found.steps]


def test_a_project_is_tested_and_then_built() -> None:
    found = complete_steps(JobSpec("."), project(build="vite build", test="vitest", dev="vite"))
    assert found == JobSteps(
        (
            Step("test", argv=("pnpm", "run", "test")),
            Step("build", argv=("pnpm", "run", "build")),
        ),
        ("dist/**",),
    )


def test_without_a_build_nothing_is_delivered_unless_it_is_asked_for() -> None:
    assert complete_steps(JobSpec("."), project(test="x")).artifacts == ()
    asked = JobSpec(".", artifacts=("out/*",))
    assert complete_steps(asked, project(test="x")).artifacts == ("out/*",)
    none = JobSpec(".", artifacts=())
    assert complete_steps(none, project(test="x", build="y")).artifacts == ()


@pytest.mark.parametrize(
    "scripts", [{}, {"test": ""}, {"test": 'echo "Error: no test specified" && exit 1'}]
)
def test_a_project_without_tests_has_a_test_step_that_cannot_pass(scripts: dict[str, str]) -> None:
    found = complete_steps(JobSpec("."), project(build="x", **scripts))
    assert names_of(found) == ["test", "build"]
    assert found.missing_test is not None
    assert found.missing_test.code is ReasonCode.NO_TESTS
    assert "no script `test`" in found.missing_test.message
    assert "--without test" in found.missing_test.message
    left_out = complete_steps(JobSpec(".", without=("test",)), project(build="x", **scripts))
    assert names_of(left_out) == ["build"]
    assert left_out.missing_test is None
    # The control: with tests there is nothing missing.
    assert complete_steps(JobSpec("."), project(test="vitest run")).missing_test is None


def test_a_step_that_is_left_out_is_gone_with_its_artifacts() -> None:
    found = complete_steps(JobSpec(".", without=("build",)), project(test="x", build="y"))
    assert names_of(found) == ["test"]
    assert found.artifacts == ()


def test_leaving_out_what_is_not_there_or_all_there_is_is_refused() -> None:
    steps = (Step("lint", shell="x"), Step("test", shell="y"))
    for spec, why in (
        (JobSpec(".", without=("tset",)), "there is no step 'tset'; the steps are: test, build"),
        (JobSpec(".", without=("test",)), "no step is left"),
        (JobSpec(".", steps=steps, without=("build",)), "the steps are: lint, test"),
        (JobSpec(".", steps=steps, without=("lint", "test")), "no step is left"),
    ):
        with pytest.raises(InvalidRequestError, match=why):
            complete_steps(spec, project(test="x"))
    # A build that may be there or not can always be left out.
    assert names_of(complete_steps(JobSpec(".", without=("build",)), project(test="x"))) == ["test"]


def test_steps_that_are_given_are_taken_as_they_are() -> None:
    steps = (Step("lint", shell="x"), Step("test", shell="y"))
    found = complete_steps(JobSpec(".", steps=steps), {})
    assert found == JobSteps(steps, ())
    assert names_of(complete_steps(JobSpec(".", steps=steps, without=("lint",)), {})) == ["test"]


def test_a_project_without_a_manifest_is_refused_with_a_hint_where_one_lies() -> None:
    with pytest.raises(JobRefusedError, match="at its top") as caught:
        complete_steps(JobSpec("."), {})
    assert caught.value.reason.code is ReasonCode.MANIFEST_MISSING
    files = {"a/b/package.json": b"{}", "web/package.json": b"{}", "README.md": b""}
    with pytest.raises(JobRefusedError, match="there is one in 'web'"):
        complete_steps(JobSpec("."), files)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "line 1, column 1"),
        (b"{\n  'a': 1}", "line 2, column 3"),
        (b'{"a": 1,\n}', "line 2, column 1"),
        (b"[]", "must hold a JSON object"),
        (b"null", "must hold a JSON object"),
        (b'{"a": 1, "a": 2}', "the key 'a' is there twice"),
        (b'{"scripts": {"test": "a", "test": "b"}}', "the key 'test' is there twice"),
        (b'{"scripts": []}', "`scripts` must be an object"),
        (b'{"scripts": null}', "`scripts` must be an object"),
        (b'{"scripts": {"test": ["x"]}}', "the script 'test' must be a text"),
        (b'{"a": NaN}', "NaN is not JSON"),
        (b'{"a": -1e999}', "too large"),
        (b'{"a": ' + b"1" * 10_000 + b"}", "too large"),
        (b'{"a": "\\ud800"}', "lone surrogate"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b'{"a": "\xff"}', "byte 7 is not UTF-8"),
        (b'{"a": ' + b"[" * 65 + b"]" * 65 + b"}", "nested deeper than 64 levels"),
        (b'{"a": ' + b"[" * 100_000, "nested deeper than 64 levels"),
        (b" " * MANIFEST_BYTES_LIMIT + b"{}", "over 1048576"),
    ],
)
def test_a_manifest_that_is_no_strict_json_is_refused_with_the_position(
    data: bytes, why: str
) -> None:
    with pytest.raises(JobRefusedError) as caught:
        read_manifest(data, "web/package.json")
    assert caught.value.reason.code is ReasonCode.MANIFEST_INVALID
    assert caught.value.reason.message.startswith("web/package.json: ")
    assert why in caught.value.reason.message
    assert len(caught.value.reason.message) < 300


def test_a_manifest_is_read_as_it_stands() -> None:
    value = {"name": "é", "scripts": {"test": "x"}, "deep": [[{"a": [1, 2.5, None, True]}]]}
    data = json.dumps(value, ensure_ascii=False).encode()
    assert read_manifest(data, "package.json") == value
    assert read_manifest(b"\xef\xbb\xbf" + data, "package.json") == value
    assert read_manifest(b'{"a": "\\ud83d\\ude00"}', "package.json") == {"a": "\U0001f600"}


# The document


def test_the_document_tells_every_field_verdict_and_reason_and_no_other_reason() -> None:
    lines = DOCUMENT.read_text().splitlines()
    first_cells = [line.split("|")[1] for line in lines if line.startswith("| `")]
    told = {word.strip() for cell in first_cells for word in cell.split("`")[1::2]}
    fields = {
        field.name for kind in (JobSpec, Step, JobLimits) for field in dataclasses.fields(kind)
    }
    codes = {str(code) for code in ReasonCode}
    assert fields | codes | {str(verdict) for verdict in Verdict} == told


def test_the_example_in_the_document_is_a_spec() -> None:
    example = DOCUMENT.read_text().split("```yaml\n")[1].split("```")[0]
    spec = make_spec(read_spec_file(example.encode(), "cloche.yaml"))
    assert [step.name for step in spec.steps or ()] == ["test", "build"]


def test_the_defaults_in_the_document_are_those_of_the_code() -> None:
    rows = [line.split("|") for line in DOCUMENT.read_text().splitlines() if line.startswith("| `")]
    told = {}
    for row in rows:
        told.update(zip(row[1].split("`")[1::2], row[2].strip().split(", "), strict=False))
    for field in dataclasses.fields(JobLimits):
        assert told[field.name] == str(field.default).replace("None", "none"), field.name
    of_step = next(row for row in rows if row[1].strip() == "`timeout_ms`")  # the job's is later
    assert of_step[2].strip() == str(Step("x").timeout_ms)
