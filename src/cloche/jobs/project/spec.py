"""What a job is to do: from a spec's text, and from the project where the spec is silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cloche.errors import InvalidRequestError
from cloche.jobs.project.manifest import read_manifest, read_object
from cloche.jobs.project.pyproject import PYPROJECT, read_build_names
from cloche.jobs.project.yaml_document import read_yaml
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import Reason, ReasonCode, Step

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloche.model.job import JobSpec

SPEC_BYTES_LIMIT: Final = 1_000_000
MANIFEST: Final = "package.json"
PROJECT_STEPS: Final = ("test", "build")
"""The steps that are read from a project, in their order."""

PROJECT_ARTIFACTS: Final = ("dist/**",)
# Source: npm-init(1): the script of a fresh package.json, which stands for none.
_PLACEHOLDER = 'echo "Error: no test specified" && exit 1'

_NO_TEST: Final = Reason(
    ReasonCode.NO_TESTS,
    f"{MANIFEST} has no script `test`: add one, such as `vitest run`, or leave the step out"
    " (`without: [test]`, --without test)",
)
_NO_PYTEST: Final = Reason(
    ReasonCode.NO_TESTS,
    "pytest is not locked, so that nothing is there to run the tests: add it (`uv add --dev"
    " pytest`), give `steps`, or leave the step out (`without: [test]`, --without test)",
)


@dataclass(frozen=True, slots=True)
class JobSteps:
    """The steps of a job, all of them known.

    Attributes:
        steps: In their order; the install is not among them.
        artifacts: Globs of files to deliver.
        missing_test: Set when the project has no test to run: its step `test` is in `steps`, but
            must not be started; it ends as `no_tests` for this reason.
    """

    steps: tuple[Step, ...]
    artifacts: tuple[str, ...]
    missing_test: Reason | None = None


def read_spec_file(data: bytes, name: str) -> dict[str, Any]:
    """The fields in a spec's text: JSON where `name` ends in `.json`, else YAML.

    `cloche.model.job_fields.make_spec` checks them and makes the spec.

    Raises:
        InvalidRequestError: it is not what it should be; the message says where.
    """
    try:
        if name.endswith(".json"):
            return read_object(data, limit_bytes=SPEC_BYTES_LIMIT)
        fields = read_yaml(data, limit_bytes=SPEC_BYTES_LIMIT)
        if not isinstance(fields, dict):
            raise ValueError("must hold names and values, such as `bundle: .`")
    except ValueError as error:
        raise InvalidRequestError(f"{name}: {error}", retry_safe=True) from error
    return fields


def complete_steps(
    spec: JobSpec,
    bundle_files: Mapping[str, bytes],
    *,
    runner: str = "pnpm",
    python_names: frozenset[str] | None = None,
) -> JobSteps:
    """The steps of `spec`, or those of the project: test, then build.

    Requires: `spec` is checked (`check_spec`).

    Args:
        spec: What was asked for.
        bundle_files: The project's files by path.
        runner: What runs the project's scripts, as `RUNNER run NAME`.
        python_names: For a project in Python: the normalised names of what is installed.

    Raises:
        JobRefusedError: MANIFEST_MISSING or MANIFEST_INVALID, when package.json or pyproject.toml
            has to be read; LOCKFILE_OUTDATED: a project in Python is to be built, and has not
            locked what builds it.
        InvalidRequestError: `without` names a step that there is not, or leaves none.
    """
    if spec.steps is not None:
        steps = _leave_out(tuple(spec.steps), spec.without, [step.name for step in spec.steps])
        return JobSteps(steps, tuple(spec.artifacts or ()))
    if python_names is None:
        known, missing_test = _read_script_steps(spec, bundle_files, runner)
    else:
        known, missing_test = _read_python_steps(spec, bundle_files, python_names)
    steps = _leave_out(known, spec.without, PROJECT_STEPS)
    kept = {step.name for step in steps}
    artifacts = spec.artifacts
    if artifacts is None:
        artifacts = PROJECT_ARTIFACTS if "build" in kept else ()
    return JobSteps(steps, tuple(artifacts), missing_test if "test" in kept else None)


def _read_script_steps(
    spec: JobSpec, bundle_files: Mapping[str, bytes], runner: str
) -> tuple[tuple[Step, ...], Reason | None]:
    scripts = _read_scripts(bundle_files)
    has_test = scripts.get("test", "").strip() not in ("", _PLACEHOLDER)
    has_build = bool(scripts.get("build", "").strip())
    # The test is there even without a script: a project that says nothing of tests has none.
    named = [name for name in PROJECT_STEPS if name != "build" or has_build]
    steps = tuple(
        Step(name, argv=(runner, "run", name), timeout_ms=spec.step_timeout_ms) for name in named
    )
    return steps, None if has_test else _NO_TEST


def _read_python_steps(
    spec: JobSpec, bundle_files: Mapping[str, bytes], locked: frozenset[str]
) -> tuple[tuple[Step, ...], Reason | None]:
    lines: dict[str, tuple[str, ...]] = {"test": ("python", "-m", "pytest")}
    needed = read_build_names(bundle_files)
    if needed is not None:
        lines["build"] = ("python", "-m", "build", "--no-isolation")
        lacking = sorted((needed | {"build"}) - locked)
        if lacking and "build" not in spec.without:
            raise JobRefusedError(
                ReasonCode.LOCKFILE_OUTDATED,
                f"{PYPROJECT} has a [build-system], but what builds it is not locked:"
                f" {', '.join(lacking)}. Add it to the lockfile (with uv: `uv add --dev"
                f" {' '.join(lacking)}`), or leave the step out (`without: [build]`, --without"
                " build)",
            )
    steps = tuple(
        Step(name, argv=argv, timeout_ms=spec.step_timeout_ms) for name, argv in lines.items()
    )
    return steps, None if "pytest" in locked else _NO_PYTEST


def _leave_out(
    steps: tuple[Step, ...], without: Sequence[str], known: Sequence[str]
) -> tuple[Step, ...]:
    for name in without:
        if name not in known:
            raise InvalidRequestError(
                f"without: there is no step {name!r}; the steps are: {', '.join(known)}",
                retry_safe=True,
            )
    left = tuple(step for step in steps if step.name not in without)
    if not left:
        raise InvalidRequestError(
            "without: no step is left; a job needs one, from the project's scripts (test, build)"
            " or given in `steps`",
            retry_safe=True,
        )
    return left


def _read_scripts(bundle_files: Mapping[str, bytes]) -> dict[str, str]:
    if MANIFEST not in bundle_files:
        below = [path for path in bundle_files if path.endswith(f"/{MANIFEST}")]
        folder = min(below, key=lambda path: (path.count("/"), path), default="").rpartition("/")[0]
        hint = f"; there is one in {folder!r}: is that the project's folder?" if folder else ""
        raise JobRefusedError(
            ReasonCode.MANIFEST_MISSING,
            f"the bundle has no {MANIFEST} at its top{hint or ', and no step was given'}",
        )
    scripts: dict[str, str] = read_manifest(bundle_files[MANIFEST], MANIFEST).get("scripts", {})
    return scripts
