"""The bundle: the files that a generator made, checked whole before any of them is used.

All that is known of a bundle is untrusted: names, kinds, sizes, contents, and, for a folder, that
it stays the same while it is read. It is taken as a whole or refused as a whole, by the rules of
`survey.py`. A hard link in a folder is a file like any other, because its bytes are copied.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from cloche.errors import InvalidRequestError
from cloche.jobs.project.patches import Patch, is_patch, read_patch
from cloche.jobs.project.survey import (
    CONTENT_LIMIT_BYTES,
    ENTRIES_LIMIT_COUNT,
    LINK,
    Survey,
    check_size,
    fault_of_mode,
    fault_of_path,
    refusal,
    show_path,
)
from cloche.jobs.refusal import JobRefusedError
from cloche.linux.trees import Entry, Tree
from cloche.model.job import ReasonCode
from cloche.store.archive import ArchiveError, is_archive, read_archive

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

ARCHIVE_LIMIT_BYTES: Final = 256 * 1024 * 1024
"""Of an archive or a diff as it lies on the disk."""
_SPEC_SUFFIXES: Final = (".yaml", ".yml", ".json")


@dataclass(frozen=True, slots=True)
class Bundle:
    """A bundle, or a template, that was checked.

    Attributes:
        files: Content by path from the project's root, sorted by path.
        executables: Paths of the files that are to be executable.
        left_out: Why, by the path of each entry that was there and is not in `files`.
        sha256: Of `files` and `executables`, lower-case hex: see `digest`.
        deleted: Files of the template that are to go.
    """

    files: Mapping[str, bytes]
    executables: frozenset[str]
    left_out: Mapping[str, str]
    sha256: str
    deleted: frozenset[str] = frozenset()


def read_bundle(
    source: str | Mapping[str, str | bytes | None],
    *,
    outputs: Sequence[str] = (),
    what: str = "bundle",
) -> Bundle | Patch:
    """Reads and checks a bundle.

    Args:
        source: Path on this host of a folder (which may itself be reached through links), of an
            archive or of a unified diff; the text of a diff (it has more than one line); or by path
            text (taken as UTF-8), bytes, or None for a file that is to go.
        outputs: Globs of the job's artifacts: the folders that they name are left out.
        what: The field, for messages.

    Returns:
        The bundle, or the diff. A file is executable when it has an x bit in the folder or archive;
        in a mapping, when its content starts with `#!`.

    Raises:
        InvalidRequestError: The source cannot be read, or is nothing of the kind.
        JobRefusedError: An entry breaks a rule, or the whole is too large.
    """
    survey = Survey(outputs)
    given: Any = source  # as callers without types have it
    if isinstance(given, Mapping):
        return _finish(survey, *_read_mapping(given, survey))
    if not isinstance(given, str):
        found = type(given).__name__
        raise InvalidRequestError(
            f"{what}: must be a path, a diff or a mapping, not {found}", retry_safe=True
        )
    path: str = given
    if "\n" in path:
        return read_patch(path.encode())
    if not os.path.isfile(path):  # noqa: PTH113 (takes any text without an error)
        return _finish(survey, *_read_folder(path, survey, what))
    data = _read_file(path, what)
    if is_archive(data):
        return _finish(survey, *_read_archive(data, survey))
    if is_patch(data):
        return read_patch(data)
    hint = ""
    if path.endswith(_SPEC_SUFFIXES):
        hint = ". If it is the spec of a job, give it with -f (`cloche job run -f FILE`)"
    raise InvalidRequestError(
        f"{what}: {show_path(path)} is no folder, tar, tar.gz, tar.zst, zip or unified diff{hint}",
        retry_safe=True,
    )


def _finish(
    survey: Survey,
    contents: dict[str, bytes],
    executables: frozenset[str],
    deleted: frozenset[str] = frozenset(),
) -> Bundle:
    return Bundle(
        files=MappingProxyType(contents),
        executables=executables,
        left_out=MappingProxyType(dict(sorted(survey.left_out.items()))),
        sha256=digest(contents, executables),
        deleted=deleted,
    )


def _read_file(host_path: str, what: str) -> bytes:
    try:
        with Path(host_path).open("rb") as reader:
            data = reader.read(ARCHIVE_LIMIT_BYTES + 1)
    except OSError as error:
        raise InvalidRequestError(
            f"{what}: cannot read {show_path(host_path)}: {error.strerror}", retry_safe=True
        ) from error
    if len(data) > ARCHIVE_LIMIT_BYTES:
        raise JobRefusedError(
            ReasonCode.BUNDLE_REFUSED,
            f"{what}: {show_path(host_path)} is over {ARCHIVE_LIMIT_BYTES // (1024 * 1024)} MiB",
        )
    return data


def _read_archive(data: bytes, survey: Survey) -> tuple[dict[str, bytes], frozenset[str]]:
    contents: dict[str, bytes] = {}
    executables: set[str] = set()
    try:
        for member in read_archive(
            data, entries_count=ENTRIES_LIMIT_COUNT, content_bytes=CONTENT_LIMIT_BYTES
        ):
            if stat.S_ISDIR(member.mode):
                if member.path:
                    survey.add_folders(member.path)
                continue
            if member.path in contents:
                survey.faults[member.path] = "is there twice; which of them counts?"
            survey.add_with_folders(member.path, fault_of_mode(member.mode))
            contents[member.path] = member.content
            if member.mode & 0o111:
                executables.add(member.path)
    except ArchiveError as error:
        raise JobRefusedError(
            ReasonCode.BUNDLE_REFUSED, f"bundle: the archive {error}; pack it anew"
        ) from error
    survey.finish()
    kept = {path: contents[path] for path in sorted(survey.files)}
    return kept, frozenset(executables & kept.keys())


def _read_mapping(
    source: Mapping[Any, Any], survey: Survey
) -> tuple[dict[str, bytes], frozenset[str], frozenset[str]]:
    given = dict(source)
    leaving = Survey(())  # what goes may be in the way of what comes
    for path, content in given.items():
        (leaving if content is None else survey).add_with_folders(path)
    leaving.finish()
    survey.finish()
    contents: dict[str, bytes] = {}
    left_bytes = CONTENT_LIMIT_BYTES
    for path in sorted(survey.files):
        content = given[path]
        if not isinstance(content, str | bytes):
            found = type(content).__name__
            survey.faults[path] = f"must be text or bytes, not {found}; nothing else can be given"
            continue
        check_size(path, len(content), left_bytes)  # a text has no fewer bytes than characters
        try:
            data = content.encode() if isinstance(content, str) else content
        except UnicodeEncodeError:
            survey.faults[path] = "has text with a lone surrogate; give its bytes"
            continue
        check_size(path, len(data), left_bytes)
        left_bytes -= len(data)
        contents[path] = data
    survey.refuse_faults()
    runnable = frozenset(path for path, data in contents.items() if data[:2] == b"#!")
    return contents, runnable, frozenset(leaving.files)


def _read_folder(
    host_path: str, survey: Survey, what: str
) -> tuple[dict[str, bytes], frozenset[str]]:
    try:
        with Tree(host_path) as tree:
            entries = {entry.path: entry for entry in _walk(tree, survey)}
            survey.finish()
            ordered = [entries[path] for path in sorted(survey.files)]
            contents = _read_entries(tree, ordered)
    except OSError as error:
        raise InvalidRequestError(
            f"{what}: cannot read the folder {show_path(host_path)}: {error.strerror}",
            retry_safe=True,
        ) from error
    return contents, frozenset(entry.path for entry in ordered if entry.mode & 0o111)


def _read_entries(tree: Tree, entries: Sequence[Entry]) -> dict[str, bytes]:
    left_bytes = CONTENT_LIMIT_BYTES
    for entry in entries:
        check_size(entry.path, entry.size_bytes, left_bytes)
        left_bytes -= entry.size_bytes
    contents = {}
    for entry in entries:
        try:
            contents[entry.path] = tree.read_file(entry)
        except OSError as error:
            raise refusal(entry.path, _why_unreadable(error)) from error
    return contents


def _walk(tree: Tree, survey: Survey) -> Iterator[Entry]:
    """Adds what is in the tree to the survey; yields its files.

    Raises:
        OSError: Its root cannot be listed.
    """
    pending = [""]
    while pending:
        folder = pending.pop()
        try:
            listed = tree.list_folder(folder, survey.left_count + 1)
        except OSError as error:
            if not folder:
                raise
            survey.folders.discard(folder)
            survey.faults[folder] = _why_unreadable(error)
            continue
        for entry in listed:
            is_folder = stat.S_ISDIR(entry.mode)
            fault = fault_of_path(entry.path)
            if not survey.add(entry.path, fault or fault_of_mode(entry.mode), is_folder=is_folder):
                continue
            if is_folder:
                pending.append(entry.path)
            else:
                yield entry


def _why_unreadable(error: OSError) -> str:
    if error.errno == errno.ELOOP:
        return LINK
    if error.errno == errno.EXDEV:
        return "is on another file system than the project; copy it in"
    if error.errno in (errno.ESTALE, errno.ENOENT, errno.ENOTDIR, errno.ENXIO):
        return "changed while it was read; try again when nothing writes to the folder"
    return f"cannot be read ({error.strerror}); make it readable or remove it"


def digest(contents: Mapping[str, bytes], executables: frozenset[str]) -> str:
    """SHA-256 of the files, whatever they were read from.

    Over `cloche-bundle-1` and a zero byte, then for each file in the order of its path's UTF-8
    bytes: length of the path, path, `x` or `-`, length of the content, content. Lengths are in
    bytes, as 8 bytes, big-endian.
    """
    digest = hashlib.sha256(b"cloche-bundle-1\0")
    for path in sorted(contents):  # code points sort as their UTF-8 does
        name, content = path.encode(), contents[path]
        digest.update(len(name).to_bytes(8) + name)
        digest.update(b"x" if path in executables else b"-")
        digest.update(len(content).to_bytes(8))
        digest.update(content)
    return digest.hexdigest()
