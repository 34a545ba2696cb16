"""What a job is and what became of it; frozen, no I/O."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

from cloche.model.outcome import Usage
from cloche.model.plan import Isolation
from cloche.model.policy import JobLimits

_NOTHING: Mapping[str, Any] = MappingProxyType({})


class Verdict(StrEnum):
    """The one word for a whole job."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    MEMORY_EXCEEDED = "memory_exceeded"
    NO_TESTS = "no_tests"  # the test step ran none
    REJECTED = "rejected"  # before anything started
    ABORTED = "aborted"
    INFRA_FAILED = "infra_failed"  # Cloche's side: registry, disk, host


class StepStatus(StrEnum):
    """The one word for a step; those that ended have the job's verdict where it came from them."""

    PASSED = "passed"
    FAILED = "failed"
    TIMED_OUT = "timed_out"
    MEMORY_EXCEEDED = "memory_exceeded"
    NO_TESTS = "no_tests"
    ABORTED = "aborted"
    INFRA_FAILED = "infra_failed"
    SKIPPED = "skipped"  # an earlier step did not pass


class ReasonCode(StrEnum):
    """Why a job did not pass; stable, explained in `docs/errors.md`."""

    BUNDLE_REFUSED = "bundle_refused"
    MANIFEST_MISSING = "manifest_missing"
    MANIFEST_INVALID = "manifest_invalid"
    LOCKFILE_MISSING = "lockfile_missing"
    LOCKFILE_INVALID = "lockfile_invalid"
    LOCKFILE_OUTDATED = "lockfile_outdated"
    LOCKFILE_CHANGED = "lockfile_changed"
    DEPENDENCY_REFUSED = "dependency_refused"
    PACKAGE_UNAVAILABLE = "package_unavailable"
    INTEGRITY_MISMATCH = "integrity_mismatch"
    SIGNATURE_INVALID = "signature_invalid"
    REGISTRY_FAILED = "registry_failed"
    EGRESS_LIMIT = "egress_limit"
    EXIT_CODE = "exit_code"
    SIGNAL = "signal"
    TESTS_FAILED = "tests_failed"
    NO_TESTS = "no_tests"
    BUILD_SCRIPT_FAILED = "build_script_failed"
    SERVICE_FAILED = "service_failed"
    STEP_TIMEOUT = "step_timeout"
    STEP_IDLE = "step_idle"
    JOB_TIMEOUT = "job_timeout"
    MEMORY = "memory"
    SCRATCH_FULL = "scratch_full"
    ABORTED = "aborted"
    HOST_FAILED = "host_failed"


@dataclass(frozen=True, slots=True)
class Reason:
    """Why, for programs (`code`) and for people (`message`: what, and what to do)."""

    code: ReasonCode
    message: str


class LockfileRule(StrEnum):
    """Whose lockfile a job installs."""

    TEMPLATE = "template"  # the template's where it has one, else the bundle's
    BUNDLE = "bundle"  # the bundle's where it has one, else the template's
    REFUSE_CHANGE = "refuse_change"  # the template's; a bundle with another one is rejected
    RESOLVE = "resolve"  # a new one, resolved by a step of its own


class RegistryRule(StrEnum):
    """What the install may fetch."""

    LOCKED = "locked"  # exactly what the lockfile names
    OPEN = "open"  # anything of the registry, by name and version; a loosening


@dataclass(frozen=True, slots=True)
class Resolve:
    """What a resolution may choose; with `LockfileRule.RESOLVE`.

    Attributes:
        allow: Names of packages that may be asked for beside those of the template; None: any.
        minimum_age_hours: Versions that were published later are not chosen.
    """

    allow: tuple[str, ...] | None = None
    minimum_age_hours: int = 24


@dataclass(frozen=True, slots=True)
class Service:
    """A program that runs beside a step's command, in its box, and ends with it.

    Attributes:
        name: Unique in its step; its lines in the log start with it.
        argv: A program of the toolchain with its arguments; or
        shell: a line for bash. One of the two is given.
        port: The command starts once somebody listens on it.
        ready_timeout_ms: How long that may take.
        env: Variables beside those of the step.
    """

    name: str
    port: int
    argv: tuple[str, ...] | None = None
    shell: str | None = None
    ready_timeout_ms: int = 30_000
    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)


@dataclass(frozen=True, slots=True)
class Egress:
    """What a step may connect to; without `allow`, nothing.

    Attributes:
        allow: Hosts: `name`, `name:port` or `*.name`; without a port 80 and 443.
    """

    allow: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Step:
    """One command of a job, run in a box of its own.

    Attributes:
        name: Unique in its job; letters, digits, `-`, `_`, `.`.
        argv: A program of the toolchain with its arguments; or
        shell: a line for bash, run with `pipefail`. One of the two is given.
        timeout_ms: Wall clock of this step.
        idle_timeout_ms: How long it may write nothing. None: as long as it likes.
        env: Variables beside Cloche's own.
        keeps: Globs, relative to /workspace; what matches is there in the steps that follow.
        expects_tests: Whether the step must show that a test ran. None: only when it is called
            `test`.
        reports: Globs of files in which a test step writes what its tests came to, as JUnit's XML.
        egress: What it may connect to. None: what the job says.
        allow_failure: When its command fails, the job goes on, and may pass.
        always: It runs although an earlier step did not pass; a failure of its own then changes
            nothing.
        services: Started before its command, in their order.
    """

    name: str
    argv: tuple[str, ...] | None = None
    shell: str | None = None
    timeout_ms: int = 300_000
    idle_timeout_ms: int | None = None
    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    keeps: tuple[str, ...] = ()
    expects_tests: bool | None = None
    reports: tuple[str, ...] = ()
    egress: Egress | None = None
    allow_failure: bool = False
    always: bool = False
    services: tuple[Service, ...] = ()

    @property
    def is_test(self) -> bool:
        """Whether a pass takes at least one test that ran."""
        return self.name == "test" if self.expects_tests is None else self.expects_tests


@dataclass(frozen=True, slots=True)
class JobSpec:
    """What is asked for.

    Attributes:
        bundle: What the generator made: the path of a folder, an archive (tar, tar.gz, tar.zst,
            zip) or a unified diff; the text of a unified diff; or a mapping from path to text,
            bytes, or None for a file of the template that is to go.
        steps: None: read from the project's package.json (test, then build).
        step_timeout_ms: Of each step that is read from the project.
        without: Names of steps that are to be left out.
        artifacts: Globs of files to deliver. None: `dist/**` where the project has a build.
        limits: Of each box, and of the job as a whole.
        egress: What the steps may connect to; the install has its own mirror.
        trust_domain: Layers are never shared between two of them.
        template: What the bundle is laid over: the path of a folder or an archive.
        lockfile: Whose is installed.
        resolve: What may be chosen where it is resolved.
        registry: What the install may fetch.
        build_scripts: Names of packages whose own build scripts may run, in a box of their own.
    """

    bundle: str | Mapping[str, str | bytes | None]
    steps: tuple[Step, ...] | None = None
    step_timeout_ms: int = 300_000
    without: tuple[str, ...] = ()
    artifacts: tuple[str, ...] | None = None
    limits: JobLimits = field(default_factory=JobLimits)
    egress: Egress = field(default_factory=Egress)
    trust_domain: str = "local"
    template: str | None = None
    lockfile: LockfileRule = LockfileRule.TEMPLATE
    resolve: Resolve = field(default_factory=Resolve)
    registry: RegistryRule = RegistryRule.LOCKED
    build_scripts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TestCounts:
    """What a test runner said of itself. Guest text: it can lower a verdict, never lift one.

    Attributes:
        runner: `vitest`, `jest`, `node:test`, `mocha`, `tap`, …
    """

    __test__ = False  # not a test class, whatever pytest thinks of its name

    runner: str
    passed: int
    failed: int
    skipped: int

    @property
    def ran(self) -> int:
        """Tests that were run to a verdict."""
        return self.passed + self.failed


@dataclass(frozen=True, slots=True)
class StepResult:
    """What became of a step.

    Attributes:
        started_at: Seconds since the epoch; 0 for a step that was skipped.
        exit_code, signal: None where there was none.
        duration_ms: From the call for its box to the end of its last process.
        tests: What its runner reported, if any.
        reason: Why it did not pass.
        log_offset_bytes, log_bytes: Its part of the log.
        cached: For the install: its layer was there already.
        allowed: It did not pass, and the job goes on as if it had (`Step.allow_failure`).
    """

    name: str
    status: StepStatus
    argv: tuple[str, ...] = ()
    started_at: float = 0.0
    exit_code: int | None = None
    signal: int | None = None
    duration_ms: float = 0.0
    usage: Usage | None = None
    tests: TestCounts | None = None
    reason: Reason | None = None
    log_offset_bytes: int = 0
    log_bytes: int = 0
    cached: bool = False
    allowed: bool = False
    isolation: Isolation | None = None


@dataclass(frozen=True, slots=True)
class Artifact:
    """A delivered file.

    Attributes:
        path: Relative to the artifacts' folder, as it was to /workspace.
        size_bytes: Of its content.
        sha256: Of its content, lower-case hex.
    """

    path: str
    size_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Denial:
    """An egress attempt that was refused.

    Attributes:
        step: In which step.
        what: The request as far as it was understood, bounded, escaped.
        why: The rule that it met.
    """

    step: str
    what: str
    why: str


@dataclass(frozen=True, slots=True)
class JobResult:
    """What became of a job.

    Attributes:
        reason: None when it passed.
        retry_safe: The same job may well pass when it is asked again.
        artifacts: Delivered files; none unless the verdict is passed.
        manifest: As in `manifest.json`: artifacts and what was skipped, and why.
        audit: The record, as in `audit.json`.
        denied: Refused egress, the first ones of many.
        isolation: What was enforced on the last step, read back from the kernel.
    """

    run_id: str
    verdict: Verdict
    failed_step: str | None
    reason: Reason | None
    retry_safe: bool
    steps: tuple[StepResult, ...]
    artifacts: tuple[Artifact, ...]
    manifest: Mapping[str, Any]
    audit: Mapping[str, Any]
    denied: tuple[Denial, ...]
    isolation: Isolation | None
    duration_ms: float

    @property
    def ok(self) -> bool:
        """True when every step passed."""
        return self.verdict is Verdict.PASSED
