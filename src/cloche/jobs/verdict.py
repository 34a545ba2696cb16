"""From what the kernel says of a step, and what its test runner said, to one word and a reason."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cloche.jobs.services import EXIT_NOT_READY
from cloche.model.job import Reason, ReasonCode, StepStatus, TestCounts, Verdict
from cloche.model.outcome import Cause, Outcome

if TYPE_CHECKING:
    from cloche.model.job import JobSpec, Step

_VERDICT_OF = {
    StepStatus.PASSED: Verdict.PASSED,
    StepStatus.FAILED: Verdict.FAILED,
    StepStatus.TIMED_OUT: Verdict.TIMED_OUT,
    StepStatus.MEMORY_EXCEEDED: Verdict.MEMORY_EXCEEDED,
    StepStatus.NO_TESTS: Verdict.NO_TESTS,
    StepStatus.ABORTED: Verdict.ABORTED,
    StepStatus.INFRA_FAILED: Verdict.INFRA_FAILED,
}
_HOW_TO_SHOW_TESTS = (
    "a pass takes a report of vitest, jest, node:test, mocha, TAP or another known runner; where"
    " the exit code alone is to decide, give the step with `expects_tests: false`"
)


def verdict_of(status: StepStatus) -> Verdict:
    """The verdict of a job that a step with this end decides."""
    return _VERDICT_OF[status]


def judge(
    step: Step,
    outcome: Outcome,
    counts: TestCounts | None,
    spec: JobSpec,
    *,
    timeout_ms: int,
    scratch_is_full: bool,
    was_idle: bool = False,
) -> tuple[StepStatus, Reason | None]:
    """Judges a step that has ended.

    The kernel's word comes first: the exit code decides. What the runner reported is guest text; it
    can lower a pass, never lift anything.

    Args:
        step: What was asked.
        outcome: What became of its command.
        counts: What its runner reported.
        spec: For the limits that messages name.
        timeout_ms: The limit that was in force: the step's own, or what was left of the job's.
        scratch_is_full: Whether there was no room left in its scratch.
        was_idle: Whether it was ended because it wrote nothing for too long.
    """
    match outcome.cause:
        case Cause.WALL_TIMEOUT if was_idle:
            message = f"step {step.name} wrote nothing for {step.idle_timeout_ms} ms and was killed"
            return StepStatus.TIMED_OUT, Reason(ReasonCode.STEP_IDLE, message)
        case Cause.WALL_TIMEOUT if timeout_ms < step.timeout_ms:
            message = f"the job's limit of {spec.limits.timeout_ms} ms passed in step {step.name}"
            return StepStatus.TIMED_OUT, Reason(ReasonCode.JOB_TIMEOUT, message)
        case Cause.WALL_TIMEOUT | Cause.CPU_TIMEOUT:
            message = f"step {step.name} ran past its limit of {timeout_ms} ms and was killed"
            return StepStatus.TIMED_OUT, Reason(ReasonCode.STEP_TIMEOUT, message)
        case Cause.MEMORY:
            message = (
                f"step {step.name} went past {spec.limits.memory_mb} MiB of memory, its files in"
                " the scratch included, and was killed"
            )
            return StepStatus.MEMORY_EXCEEDED, Reason(ReasonCode.MEMORY, message)
        case Cause.ABORTED | Cause.DISPOSED:
            return StepStatus.ABORTED, Reason(ReasonCode.ABORTED, "the job was aborted")
        case Cause.SIGNALLED:
            message = f"step {step.name} was killed by signal {outcome.signal}"
            return StepStatus.FAILED, Reason(ReasonCode.SIGNAL, message)
        case Cause.EXITED:
            return _judge_exit(step, outcome, counts, spec, scratch_is_full=scratch_is_full)


def _judge_exit(
    step: Step,
    outcome: Outcome,
    counts: TestCounts | None,
    spec: JobSpec,
    *,
    scratch_is_full: bool,
) -> tuple[StepStatus, Reason | None]:
    if outcome.exit_code != 0:
        if step.services and outcome.exit_code == EXIT_NOT_READY:
            names = ", ".join(service.name for service in step.services)
            message = f"a service of step {step.name} ({names}) did not come up; the log says which"
            return StepStatus.FAILED, Reason(ReasonCode.SERVICE_FAILED, message)
        if scratch_is_full:
            message = (
                f"step {step.name} ended with exit code {outcome.exit_code}, its scratch full:"
                f" {spec.limits.scratch_mb} MiB or {spec.limits.scratch_inodes_count} files"
            )
            return StepStatus.FAILED, Reason(ReasonCode.SCRATCH_FULL, message)
        if step.is_test and counts is not None and counts.failed:
            message = f"{_count(counts)} in step {step.name}"
            return StepStatus.FAILED, Reason(ReasonCode.TESTS_FAILED, message)
        message = f"step {step.name} ended with exit code {outcome.exit_code}"
        return StepStatus.FAILED, Reason(ReasonCode.EXIT_CODE, message)
    if not step.is_test:
        return StepStatus.PASSED, None
    if counts is None:
        message = f"step {step.name} ended well, but nothing shows that a test ran;"
        return StepStatus.NO_TESTS, Reason(ReasonCode.NO_TESTS, f"{message} {_HOW_TO_SHOW_TESTS}")
    if counts.failed:
        message = (
            f"{_count(counts)} in step {step.name}, although its exit code is 0: does its script"
            " hide the runner's own (`| cat`, `|| true`, `;`)?"
        )
        return StepStatus.FAILED, Reason(ReasonCode.TESTS_FAILED, message)
    if counts.ran == 0:
        message = f"step {step.name} ended well, but its {counts.runner} ran no test"
        return StepStatus.NO_TESTS, Reason(ReasonCode.NO_TESTS, message)
    return StepStatus.PASSED, None


def _count(counts: TestCounts) -> str:
    return f"{counts.failed} of {counts.ran} tests failed"
