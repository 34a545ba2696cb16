"""Takes a guest's files out of a box: by descriptor, following nothing, every process dead.

The two ways out: files that match globs, one by one (`gather`), and whole folders (`copy_tree`).
"""

from __future__ import annotations

import contextlib
import os
import stat
import unicodedata
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cloche.linux.files import matches, open_beneath, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_DEPTH_LIMIT = 64
_SKIPPED_LIMIT_COUNT = 1_000
_SHOWN_CHARACTERS = 256
# Cc: control characters; Cf: invisible ones that turn text around, but for the joiners of emoji.
_JOINERS = "\u200c\u200d"
# Never looked into unless a glob spells the name out: huge, and not what anyone means by `**`.
_PRUNED = frozenset({"node_modules", ".git"})
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class GuestFile:
    """A regular file that matches a glob, open for reading.

    Attributes:
        path: Relative to where the search began; UTF-8, no `..`.
        globs: Those it matches.
        size_bytes: As fstat says; it can be far more than what is stored.
        executable: Whether anyone may run it.
        descriptor: Closed after the callback.
    """

    path: str
    globs: tuple[str, ...]
    size_bytes: int
    executable: bool
    descriptor: int


class _Gathering:
    def __init__(
        self,
        globs: Sequence[str],
        take: Callable[[GuestFile], str | None],
        entries_limit_count: int,
    ) -> None:
        self._globs = globs
        self._take = take
        self._left_count = entries_limit_count
        self.skipped: dict[str, str] = {}
        self.skipped_count = 0

    def skip(self, path: str, why: str) -> None:
        self.skipped_count += 1
        if len(self.skipped) < _SKIPPED_LIMIT_COUNT:
            shown = printable(path)
            if len(shown) > _SHOWN_CHARACTERS:
                shown = f"{shown[: _SHOWN_CHARACTERS - 1]}…"
            self.skipped[shown] = why

    def walk(self, folder: int, prefix: str, depth: int) -> None:
        names = []
        with os.scandir(folder) as entries:
            for entry in entries:
                self._left_count -= 1
                if self._left_count < 0:
                    self.skip(prefix or ".", "too many entries to look at")
                    return
                names.append((entry.name, entry.is_dir(follow_symlinks=False)))
        for name, is_folder in sorted(names):
            path = prefix + name
            if is_folder:
                if _may_match_below(path, self._globs):
                    self._enter(folder, name, path, depth)
            elif found := tuple(glob for glob in self._globs if matches(path, glob)):
                self._offer(folder, name, path, found)
            elif _may_match_below(path, self._globs) and _is_link(folder, name):
                self.skip(path, "a link")  # a folder that was asked for, had it been one

    def _enter(self, folder: int, name: str, path: str, depth: int) -> None:
        if depth >= _DEPTH_LIMIT:
            self.skip(path, f"deeper than {_DEPTH_LIMIT} folders")
            return
        try:
            below = open_beneath(folder, name, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            self.skip(path, error.strerror or "cannot be opened")
            return
        try:
            self.walk(below, f"{path}/", depth + 1)
        finally:
            os.close(below)

    def _offer(self, folder: int, name: str, path: str, globs: tuple[str, ...]) -> None:
        if printable(path) != path:
            self.skip(path, "its name is not UTF-8")
            return
        if any(
            unicodedata.category(character) in ("Cc", "Cf") and character not in _JOINERS
            for character in path
        ):
            self.skip(path, "its name has control or invisible characters")
            return
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
            if not stat.S_ISREG(mode):
                self.skip(path, "a link" if stat.S_ISLNK(mode) else "not a regular file")
                return
            descriptor = open_beneath(folder, name, os.O_RDONLY)
        except OSError as error:
            self.skip(path, error.strerror or "cannot be opened")
            return
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                self.skip(path, "not a regular file")
                return
            executable = bool(status.st_mode & 0o111)
            why = self._take(GuestFile(path, globs, status.st_size, executable, descriptor))
        finally:
            os.close(descriptor)
        if why is not None:
            self.skip(path, why)


def _is_link(folder: int, name: str) -> bool:
    return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)


def _may_match_below(path: str, globs: Sequence[str]) -> bool:
    """Whether anything inside the folder `path` can match."""
    parts = path.split("/")
    for glob in globs:
        patterns = glob.split("/")
        if any(part in _PRUNED and part not in patterns for part in parts):
            continue
        if "**" in patterns:
            # Up to the first `**` each part must fit; from there on anything goes.
            fixed = patterns[: patterns.index("**")]
        elif len(patterns) > len(parts):
            fixed = patterns[:-1]
        else:
            continue
        shared = min(len(fixed), len(parts))
        if matches("/".join(parts[:shared]), "/".join(fixed[:shared])) or not shared:
            return True
    return False


def gather(
    folder: int,
    globs: Sequence[str],
    take: Callable[[GuestFile], str | None],
    *,
    entries_limit_count: int = 1_000_000,
) -> tuple[dict[str, str], int]:
    """Offers every regular file that matches, in the order of their paths.

    Args:
        folder: Where to look; nothing outside, no link and no other file system is entered.
        globs: Relative; `**` stands for any number of folders. `node_modules` and `.git` are
            entered only where a glob spells them out.
        take: Called with each file; returns why it was left, or None.
        entries_limit_count: Directory entries that are looked at before the search gives up.

    Returns:
        (what was asked for and left, and why: the first thousand; how many those were).

    Requires: nothing is running that can write there.
    """
    gathering = _Gathering(globs, take, entries_limit_count)
    gathering.walk(folder, "", 0)
    return gathering.skipped, gathering.skipped_count


@dataclass(slots=True)
class TreeCopy:
    """What `copy_tree` has copied, and may copy.

    Attributes:
        left_out: Paths, from the root, that are not copied, nor is what lies below them.
        base: A tree of Cloche's own that the source was laid over; what is as it is there is copied
            from there. -1 for none.
        unchanged: The paths of those files.
    """

    limit_bytes: int
    limit_count: int
    size_bytes: int = 0
    entries_count: int = 0
    left_out: frozenset[str] = frozenset()
    base: int = -1
    unchanged: set[str] = field(default_factory=set)
    # Set from another thread: nobody wants the copy any more.
    stopped: bool = False


class TreeRefusedError(Exception):
    """The tree holds what must not be copied."""


def copy_tree(source: int, target: int, prefix: str, counts: TreeCopy, *, base: int = -1) -> None:
    """Copies the folders, regular files and inner links below `source` into `target`.

    Files get plain modes (0644, or 0755 where anyone could run them).

    Args:
        source: A guest's folder.
        target: An empty folder of Cloche's own.
        prefix: The path of `source` from the root that links must not leave, with a slash at its
            end unless empty.
        counts: Bounds, and what was copied so far.
        base: The same folder of `counts.base`; -1 where it has none.

    Raises:
        TreeRefusedError: a link that leads out, a special file, a bound passed.
        OSError: from the kernel, a full disk among others.

    Requires: nothing is running that can write below `source`.
    """
    if prefix.count("/") > _DEPTH_LIMIT:
        raise TreeRefusedError(f"{printable(prefix)} is deeper than {_DEPTH_LIMIT} folders")
    with os.scandir(source) as entries:
        listed = [
            (each.name, each.is_dir(follow_symlinks=False))
            for each in entries
            if prefix + each.name not in counts.left_out
        ]
    counts.entries_count += len(listed)
    if counts.stopped:
        raise TreeRefusedError("nobody waits for it any more")
    if counts.entries_count > counts.limit_count:
        raise TreeRefusedError(f"over {counts.limit_count} entries")
    for name, is_folder in listed:
        if is_folder:
            os.mkdir(name, 0o755, dir_fd=target)
            below = open_beneath(source, name, os.O_RDONLY | os.O_DIRECTORY)
            try:
                into = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=target)
                try:
                    with _same_folder(base, name) as base_below:
                        copy_tree(below, into, f"{prefix}{name}/", counts, base=base_below)
                finally:
                    os.close(into)
            finally:
                os.close(below)
            continue
        status = os.stat(name, dir_fd=source, follow_symlinks=False)
        if stat.S_ISREG(status.st_mode):
            if _is_unchanged(base, name, status):
                _copy_file(base, target, name, counts)
                counts.unchanged.add(prefix + name)
            else:
                _copy_file(source, target, name, counts)
        elif stat.S_ISLNK(status.st_mode):
            link = os.readlink(name, dir_fd=source)
            _check_link(prefix + name, link)
            os.symlink(link, name, dir_fd=target)
        else:
            raise TreeRefusedError(f"{printable(prefix + name)} is no file, folder or link")


def copy_folder(source: int, target: int, path: str, counts: TreeCopy) -> None:
    """`copy_tree` of one folder below `source` to the same place below `target`; nothing when
    there is no such folder.
    """
    try:
        below = open_beneath(source, path, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        return
    try:
        into = os.dup(target)
        try:
            for part in path.split("/"):
                with contextlib.suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=into)
                into = _descend(into, part)
            with _same_folder(counts.base, path) as base:
                copy_tree(below, into, f"{path}/", counts, base=base)
        finally:
            os.close(into)
    finally:
        os.close(below)


def copy_around(source: int, target: int, folders: Sequence[str], counts: TreeCopy) -> None:
    """`copy_tree` of a folder without what lies in some folders below it.

    What lies in a `node_modules` of one of them is copied: those are other packages.

    Args:
        source, target, counts: As for `copy_tree`.
        folders: Paths below `source`, added to what `counts` leaves out.
    """
    counts.left_out |= frozenset(folders)
    copy_tree(source, target, "", counts)
    for folder in folders:
        copy_folder(source, target, f"{folder}/node_modules", counts)


def _descend(folder: int, name: str) -> int:
    try:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    finally:
        os.close(folder)


@contextlib.contextmanager
def _same_folder(base: int, path: str) -> Iterator[int]:
    """The folder of that path below `base`; -1 where there is none."""
    below = -1
    if base >= 0:
        with contextlib.suppress(OSError):
            below = open_beneath(base, path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield below
    finally:
        if below >= 0:
            os.close(below)


def _is_unchanged(base: int, name: str, status: os.stat_result) -> bool:
    """Whether a file is as `base` has it.

    Were `status` a lie, the target would get what the base has, and nothing else.
    """
    if base < 0:
        return False
    try:
        known = os.stat(name, dir_fd=base, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return (known.st_mode, known.st_size, known.st_mtime_ns) == (
        status.st_mode,
        status.st_size,
        status.st_mtime_ns,
    )


def _check_link(path: str, link: str) -> None:
    """A link may lead anywhere below the root, by its text alone."""
    depth = path.count("/")
    for part in link.split("/"):
        depth += {"..": -1, ".": 0, "": 0}.get(part, 1)
        if depth < 0:
            break
    if link.startswith("/") or depth < 0:
        raise TreeRefusedError(f"{printable(path)} is a link that leads out: {printable(link)}")


def _copy_file(source: int, target: int, name: str, counts: TreeCopy) -> None:
    reader = open_beneath(source, name, os.O_RDONLY)
    try:
        status = os.fstat(reader)
        counts.size_bytes += status.st_size
        if counts.size_bytes > counts.limit_bytes:
            raise TreeRefusedError(f"over {counts.limit_bytes} bytes")
        mode = 0o755 if status.st_mode & 0o111 else 0o644
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        writer = os.open(name, flags, mode, dir_fd=target)
        try:
            left_bytes = status.st_size
            while left_bytes > 0 and (sent := os.sendfile(writer, reader, None, left_bytes)):
                left_bytes -= sent
        finally:
            os.close(writer)
    finally:
        os.close(reader)
