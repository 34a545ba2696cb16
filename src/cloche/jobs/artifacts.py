"""Artifacts: what leaves a box for good, copied into new files and listed in a manifest."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cloche.errors import InvalidRequestError
from cloche.model.job import Artifact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from cloche.backends.base import Box
    from cloche.linux.gathering import GuestFile
    from cloche.model.policy import JobLimits

_CHUNK_BYTES = 1 << 20
_MIB = 1024 * 1024
_SHOWN_CHARACTERS = 256
# Source: linux/limits.h, PATH_MAX, the final NUL included.
_PATH_LIMIT_BYTES = 4096


@dataclass(frozen=True, slots=True)
class _Copy:
    artifact: Artifact
    globs: tuple[str, ...]
    stored: Path | None


class ArtifactCollector:
    """Collects after each step that passed.

    A glob's files are those of the last step that had any: what a test left in the build's folder
    is gone once the build has made its own.
    """

    def __init__(self, globs: Sequence[str], limits: JobLimits, folder: Path | None) -> None:
        """Keeps copies in `folder`, which `finish` removes; None: files are hashed, not kept."""
        self._globs = tuple(globs)
        self._limit_bytes = limits.artifacts_mb * _MIB
        self._limit_count = limits.artifacts_count
        self._folder = folder
        self._stored_count = 0
        self._copies: dict[str, _Copy] = {}
        self._skipped: dict[str, str] = {}
        self._skipped_count = 0

    async def collect(self, box: Box) -> None:
        """Takes what a step has made.

        Raises:
            OSError: the copies could not be written.
        """
        if not self._globs:
            return
        found: dict[str, _Copy] = {}
        left_bytes = self._limit_bytes

        def take(file: GuestFile) -> str | None:
            nonlocal left_bytes
            if len(found) >= self._limit_count:
                return f"over the limit of {self._limit_count} artifacts"
            if file.size_bytes > left_bytes:
                return f"its {file.size_bytes} bytes pass the limit of {self._limit_bytes}"
            stored = self._next_place()
            size_bytes, digest = _copy(file.descriptor, stored, left_bytes)
            left_bytes -= size_bytes
            found[file.path] = _Copy(Artifact(file.path, size_bytes, digest), file.globs, stored)
            return None

        skipped, skipped_count = await box.gather(self._globs, take)
        renewed = {glob for copy in found.values() for glob in copy.globs}
        for path, copy in list(self._copies.items()):
            if path in found or renewed.intersection(copy.globs):
                del self._copies[path]
                if copy.stored is not None:
                    copy.stored.unlink()
        self._copies |= found
        if found or skipped:
            self._skipped, self._skipped_count = skipped, skipped_count

    def add(self, path: str, content: bytes) -> None:
        """Adds an artifact of Cloche's own making, whatever the globs are.

        Raises:
            OSError: it could not be written.
        """
        stored = self._next_place()
        if stored is not None:
            stored.write_bytes(content)
        artifact = Artifact(path, len(content), hashlib.sha256(content).hexdigest())
        self._copies[path] = _Copy(artifact, (), stored)

    def _next_place(self) -> Path | None:
        if self._folder is None:
            return None
        self._folder.mkdir(exist_ok=True)
        self._stored_count += 1
        return self._folder / str(self._stored_count)

    def finish(self, target: Path | None) -> tuple[tuple[Artifact, ...], dict[str, Any]]:
        """Lays the artifacts into `target`, a new folder; returns them by path, and the manifest.

        Raises:
            OSError: they could not be moved there.
        """
        artifacts: list[Artifact] = []
        skipped, skipped_count = dict(self._skipped), self._skipped_count
        left_bytes = self._limit_bytes
        for path in sorted(self._copies):
            copy = self._copies[path]
            place = None if target is None else target / path
            why = self._why_left(path, place, len(artifacts), left_bytes)
            if why is not None:
                skipped[path[:_SHOWN_CHARACTERS]] = why
                skipped_count += 1
                continue
            left_bytes -= copy.artifact.size_bytes
            artifacts.append(copy.artifact)
            if place is not None and copy.stored is not None:
                place.parent.mkdir(parents=True, exist_ok=True)
                copy.stored.rename(place)
        matched = {glob for copy in self._copies.values() for glob in copy.globs}
        for glob in self._globs:
            if glob not in matched:
                skipped.setdefault(glob, "matches no file")
        manifest = {
            "artifacts": [
                {"path": each.path, "size_bytes": each.size_bytes, "sha256": each.sha256}
                for each in artifacts
            ],
            "skipped": skipped,
            "skipped_count": skipped_count,
        }
        return tuple(artifacts), manifest

    def _why_left(self, path: str, place: Path | None, count: int, left_bytes: int) -> str | None:
        """What only shows once all steps have made theirs."""
        if any(parent in self._copies for parent in parents_of(path)):
            return "another step made a file of its folder's name"
        if count >= self._limit_count:
            return f"over the limit of {self._limit_count} artifacts"
        if self._copies[path].artifact.size_bytes > left_bytes:
            return f"over the limit of {self._limit_bytes} bytes for all artifacts"
        if place is not None and len(os.fsencode(place)) >= _PATH_LIMIT_BYTES:
            return "its path is too long for this host"
        return None

    def close(self) -> None:
        """Removes what was copied and not delivered. Idempotent."""
        if self._folder is not None and self._folder.exists():
            shutil.rmtree(self._folder)


def parents_of(path: str) -> list[str]:
    """The folders on the way to a path."""
    parts = path.split("/")
    return ["/".join(parts[:count]) for count in range(1, len(parts))]


def _copy(reader: int, target: Path | None, limit_bytes: int) -> tuple[int, str]:
    """Copies what is there now, never more than the limit; returns (bytes, sha256)."""
    digest = hashlib.sha256()
    size_bytes = 0
    with contextlib.ExitStack() as stack:
        writer = None if target is None else stack.enter_context(target.open("xb"))
        while size_bytes < limit_bytes and (
            chunk := os.read(reader, min(_CHUNK_BYTES, limit_bytes - size_bytes))
        ):
            digest.update(chunk)
            size_bytes += len(chunk)
            if writer is not None:
                writer.write(chunk)
    return size_bytes, digest.hexdigest()


def verify_artifacts(out: Path) -> tuple[int, list[str]]:
    """Compares what a job delivered with its manifest.

    Args:
        out: The job's folder, with `manifest.json` and, where there are any, `artifacts/`.

    Returns:
        How many artifacts the manifest names; what is wrong, one line each, none when all is right.

    Raises:
        InvalidRequestError: There is no manifest that can be read.
    """
    try:
        manifest = json.loads((out / "manifest.json").read_bytes())
        named = {
            str(each["path"]): (int(each["size_bytes"]), str(each["sha256"]))
            for each in manifest["artifacts"]
        }
    except (OSError, ValueError, LookupError, TypeError, RecursionError) as error:
        raise InvalidRequestError(
            f"{out / 'manifest.json'} is no manifest of a job ({error}); name the folder that was"
            " given as --out",
            retry_safe=True,
        ) from error
    faults: list[str] = []
    folder = out / "artifacts"
    for path, (size_bytes, sha256) in named.items():
        if path.startswith("/") or ".." in path.split("/"):
            faults.append(f"{path}: leads out of the artifacts' folder")
            continue
        try:
            status = (folder / path).lstat()
            is_file = stat.S_ISREG(status.st_mode)
            if is_file and status.st_size == size_bytes and _hash(folder / path) == sha256:
                continue
            faults.append(f"{path}: is not what was delivered")
        except FileNotFoundError:
            faults.append(f"{path}: is missing")
        except ValueError:  # a NUL, a lone surrogate
            faults.append(f"{path}: is no name of a file")
        except OSError as error:
            faults.append(f"{path}: cannot be read ({error.strerror})")
    for parent, folders, files in os.walk(folder):
        for name in (*files, *(each for each in folders if Path(parent, each).is_symlink())):
            path = str(Path(parent, name).relative_to(folder))
            if path not in named:
                faults.append(f"{path}: was not delivered by the job")
    return len(named), [each.encode("utf-8", "backslashreplace").decode() for each in faults]


def _hash(path: Path) -> str:
    with path.open("rb") as reader:
        return hashlib.file_digest(reader, "sha256").hexdigest()


async def read_kept(
    box: Box, globs: Sequence[str], limit_bytes: int
) -> tuple[dict[str, bytes], frozenset[str], Mapping[str, str]]:
    """What a step keeps for those that follow: contents, which may be run, what was left and why.

    Raises:
        KeptTooMuchError: it is over the limit.
    """
    contents: dict[str, bytes] = {}
    executables: set[str] = set()
    wanted_bytes = 0

    def take(file: GuestFile) -> str | None:
        nonlocal wanted_bytes
        wanted_bytes += file.size_bytes
        if wanted_bytes > limit_bytes:
            return "over the limit"
        with open(file.descriptor, "rb", closefd=False) as reader:
            contents[file.path] = reader.read(file.size_bytes)
        if file.executable:
            executables.add(file.path)
        return None

    skipped, _ = await box.gather(globs, take)
    if wanted_bytes > limit_bytes:
        raise KeptTooMuchError(f"{wanted_bytes} bytes are over the limit of {limit_bytes}")
    return contents, frozenset(executables), skipped


class KeptTooMuchError(Exception):
    """A step keeps more than may be handed on."""
