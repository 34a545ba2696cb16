"""A bundle laid over a template: which files a job works with, and whose lockfile it installs."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from cloche.jobs.project.bundle import Bundle, digest
from cloche.jobs.project.patches import Patch
from cloche.jobs.project.survey import CONTENT_LIMIT_BYTES, Survey, check_size, refusal, show_path
from cloche.jobs.refusal import JobRefusedError
from cloche.model.job import LockfileRule, ReasonCode

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

LOCKFILES: Final = (
    *("pnpm-lock.yaml", "package-lock.json", "npm-shrinkwrap.json", "yarn.lock"),
    *("uv.lock", "requirements.txt"),
)
EMPTY: Final = Bundle(
    MappingProxyType({}), frozenset(), MappingProxyType({}), digest({}, frozenset())
)
"""What a bundle lies over where there is no template."""


def lay_over(template: Bundle, change: Bundle | Patch, *, outputs: Sequence[str] = ()) -> Bundle:
    """The files of the template with those of the bundle in their places.

    Args:
        template: Read with the same `outputs`.
        change: What is laid over it.
        outputs: As for `read_bundle`: a diff makes none of them either.

    Raises:
        JobRefusedError: A file that is to go is not there, a diff does not fit, or what comes of it
            breaks a rule that neither of them broke.
    """
    if isinstance(change, Patch):
        written, runnable, gone = change.apply(template.files, template.executables)
        left_out: Mapping[str, str] = {}
    else:
        written, runnable, gone = dict(change.files), change.executables, change.deleted
        left_out = change.left_out
    for path in sorted(gone):
        if path not in template.files:
            raise refusal(path, "is to go, and is no file of the template")
    survey = Survey(outputs)
    merged = {path: data for path, data in template.files.items() if path not in gone} | written
    left_bytes = CONTENT_LIMIT_BYTES
    for path in sorted(merged):
        survey.add_with_folders(path)
        check_size(path, len(merged[path]), left_bytes)
        left_bytes -= len(merged[path])
    survey.finish()
    files = {path: merged[path] for path in sorted(survey.files)}
    executables = (template.executables - gone - written.keys() | runnable) & files.keys()
    return Bundle(
        files=MappingProxyType(files),
        executables=frozenset(executables),
        left_out=MappingProxyType({**template.left_out, **left_out, **survey.left_out}),
        sha256=digest(files, executables),
    )


def keep_lockfile(rule: LockfileRule, template: Bundle, merged: Bundle) -> Bundle:
    """What is installed from, by the rule of the job.

    Raises:
        JobRefusedError: LOCKFILE_CHANGED: the bundle has another lockfile than the template.
    """
    owned = [name for name in LOCKFILES if name in template.files]
    if rule in (LockfileRule.BUNDLE, LockfileRule.RESOLVE) or not owned:
        return merged
    changed = [name for name in LOCKFILES if template.files.get(name) != merged.files.get(name)]
    if not changed:
        return merged
    if rule is LockfileRule.REFUSE_CHANGE:
        raise JobRefusedError(
            ReasonCode.LOCKFILE_CHANGED,
            f"the bundle changes {show_path(changed[0])} of the template; leave it as it is, or"
            " allow it (`lockfile: bundle`)",
        )
    files = {path: data for path, data in merged.files.items() if path not in changed}
    files |= {name: template.files[name] for name in changed if name in template.files}
    files = dict(sorted(files.items()))
    executables = merged.executables & files.keys()
    why = "the template's own lockfile is what is installed (`lockfile: template`)"
    return Bundle(
        files=MappingProxyType(files),
        executables=executables,
        left_out=MappingProxyType({**merged.left_out, **dict.fromkeys(changed, why)}),
        sha256=digest(files, executables),
    )
