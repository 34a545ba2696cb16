"""A job's events and results in words: short, for people, safe on any terminal."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any

from cloche.cli.terminal import make_visible
from cloche.model.job import StepStatus

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloche.jobs.project.reading import Project
    from cloche.model.events import StepEvent
    from cloche.model.job import Artifact, JobResult, StepResult, TestCounts

_COLOR_CHARS = frozenset("0123456789;:")
# What ends a line, or turns the direction of text, beside what `make_visible` knows.
_SHOWN = {
    0x0A: "\u240a",
    **{code: f"\\u{code:04x}" for code in (0x061C, 0x200E, 0x200F, 0x2028, 0x2029)},
}


def show_line(text: str) -> str:
    """A guest's text as one harmless line: colours dropped, other control characters shown."""
    return make_visible(drop_colors(text)).translate(_SHOWN)


def drop_colors(text: str) -> str:
    """Takes out the sequences that only set colours and weights (ECMA-48, SGR)."""
    first, *pieces = text.split("\x1b[")
    kept = [first]
    for piece in pieces:
        parameters, found, rest = piece.partition("m")
        is_color = found and _COLOR_CHARS.issuperset(parameters)
        kept.append(rest if is_color else f"\x1b[{piece}")
    return "".join(kept)


def show_duration(duration_ms: float) -> str:
    """`85 ms`, `1.2 s`, `2 min 05 s`, `1 h 02 min`."""
    if duration_ms < 100:
        return f"{duration_ms:.0f} ms"
    if duration_ms < 59_950:
        return f"{duration_ms / 1000:.1f} s"
    minutes, seconds = divmod(round(duration_ms / 1000), 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"


def show_size(size_bytes: int) -> str:
    """`12 B`, `1.2 kB`, `220 kB`, `12.4 MB`; in powers of a thousand."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB"):
        if size < 999.5:
            return f"{size:.1f} {unit}" if unit != "B" and size < 99.95 else f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def show_count(count: int, noun: str) -> str:
    """`1 test`, `2 tests`."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_status(status: StepStatus) -> str:
    """A status for people: `timed out`."""
    return status.value.replace("_", " ")


def show_tests(tests: TestCounts) -> str:
    """`10 tests`, or `9 passed, 1 failed, 2 skipped`."""
    if not tests.failed and not tests.skipped:
        return show_count(tests.passed, "test")
    named = (("passed", tests.passed), ("failed", tests.failed), ("skipped", tests.skipped))
    return ", ".join(f"{count:,} {word}" for word, count in named if count)


def show_downloads(progress: StepEvent) -> str:
    """`23 of 54 packages, 12.4 MB`, or `54 packages, 12.4 MB` when all are there."""
    size = show_size(progress.done_bytes)
    if progress.done_count < progress.total_count:
        return f"{progress.done_count:,} of {show_count(progress.total_count, 'package')}, {size}"
    return f"{show_count(progress.done_count, 'package')}, {size}"


def describe_step(result: StepResult, progress: StepEvent | None) -> str:
    """What else there is to say of a step that has ended, such as `exit code 1, 3 tests`.

    Args:
        result: Of the step.
        progress: The last that was heard of its downloads.
    """
    parts = []
    if result.status is StepStatus.FAILED:  # elsewhere the signal was Cloche's own
        if result.signal is not None:
            parts.append(f"signal {result.signal}")
        elif result.exit_code:
            parts.append(f"exit code {result.exit_code}")
    if result.cached:
        parts.append("cached")
    elif progress is not None and progress.done_count:
        parts.append(show_downloads(progress))
    if result.tests is not None:
        parts.append(show_tests(result.tests))
    return ", ".join(parts)


def describe_artifacts(artifacts: Sequence[Artifact], out: str | None, noun: str) -> str:
    """`4 artifacts, 220 kB → out/`; `noun` is what they are called."""
    if not artifacts:
        return f"no {noun}s"
    size = show_size(sum(artifact.size_bytes for artifact in artifacts))
    where = f"→ {out.rstrip('/')}/" if out else "(not kept: --out DIR keeps them)"
    return f"{show_count(len(artifacts), noun)}, {size} {where}"


def describe_end(result: JobResult) -> str:
    """Why it did not pass, such as ` at test: tests_failed: 2 of 3 tests failed`."""
    at = f" at {result.failed_step}" if result.failed_step else ""
    if result.reason is None:
        return at
    return f"{at}: {result.reason.code}: {show_line(result.reason.message)}"


def to_json(value: Any) -> Any:
    """Events and results as JSON values: their own fields by their own names."""
    if isinstance(value, Enum):
        return value.value
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        names = [field.name for field in dataclasses.fields(value)]
        return {name: to_json(getattr(value, name)) for name in names}
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    return value


def describe_project(project: Project) -> list[str]:
    """What a job would do, a line for each part of it."""
    size_bytes = sum(map(len, project.bundle.files.values()))
    lines = [
        f"{show_count(len(project.bundle.files), 'file')}, {show_size(size_bytes)},"
        f" sha256 {project.bundle.sha256}"
    ]
    lines += [
        f"left out: {show_line(path)} ({why})" for path, why in project.bundle.left_out.items()
    ]
    if project.resolution is not None:
        lines.append("resolve: pnpm-lock.yaml is made anew")
    installation = project.installation
    if installation is not None:
        lines += [show_line(line) for line in installation.ignored]
        count = show_count(installation.packages_count, "package")
        lines.append(f"install: {count} of {installation.lockfile}, by {installation.tool}")
    for step in project.steps.steps:
        line = step.shell if step.shell is not None else " ".join(step.argv or ())
        lines.append(f"{step.name}: {show_line(line)}")
    if project.steps.missing_test is not None:
        lines.append(f"no_tests: {project.steps.missing_test.message}")
    if project.steps.artifacts:
        lines.append(f"artifacts: {show_line(' '.join(project.steps.artifacts))}")
    return lines
