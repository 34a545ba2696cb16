"""What a job is to do: from a spec's text, and from the project where the spec is silent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from cloche.errors import InvalidRequestError
from cloche.jobs.project.manifest import read_manifest, read_object
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
    spec: JobSpec, bundle_files: Mapping[str, bytes], *, runner: str = "pnpm"
) -> JobSteps:
    """The steps of `spec`, or those of the project's package.json: test, then build.

    Requires: `spec` is checked (`check_spec`).

    Args:
        spec: What was asked for.
        bundle_files: The project's files by path.
        runner: What runs the project's scripts, as `RUNNER run NAME`.

    Raises:
        JobRefusedError: MANIFEST_MISSING or MANIFEST_INVALID, when package.json has to be read.
        InvalidRequestError: `without` names a step that there is not, or leaves none.
    """
    if spec.steps is not None:
        steps = _leave_out(tuple(spec.steps), spec.without, [step.name for step in spec.steps])
        return JobSteps(steps, tuple(spec.artifacts or ()))
    scripts = _read_scripts(bundle_files)
    has_test = scripts.get("test", "").strip() not in ("", _PLACEHOLDER)
    has_build = bool(scripts.get("build", "").strip())
    # The test is there even without a script: a project that says nothing of tests has none.
    named = [name for name in PROJECT_STEPS if name != "build" or has_build]
    steps = tuple(
        Step(name, argv=(runner, "run", name), timeout_ms=spec.step_timeout_ms) for name in named
    )
    steps = _leave_out(steps, spec.without, PROJECT_STEPS)
    kept = {step.name for step in steps}
    artifacts = spec.artifacts
    if artifacts is None:
        artifacts = PROJECT_ARTIFACTS if "build" in kept else ()
    return JobSteps(steps, tuple(artifacts), None if has_test or "test" not in kept else _NO_TEST)


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
