"""The record of a run: one JSON document, durable before anything starts, whole at the end."""

from __future__ import annotations

import hashlib
import json
import os
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from cloche.egress.signatures import Signatures
    from cloche.environments.layers import Layer
    from cloche.jobs.project.bundle import Bundle
    from cloche.model.job import Denial, JobSpec, Reason, Step, StepResult, Verdict
    from cloche.model.plan import Isolation

_FORMAT = "cloche-audit/1"


class AuditRecord:
    """What was asked, with what it was done, and what came of it. Names of variables, no values."""

    def __init__(self, run_id: str, spec: JobSpec, started_at: float, path: Path | None) -> None:
        """Writes to `path` where there is one, first with the state `intended`."""
        self._path = path
        # A write may still be under way in its thread when a job is stopped.
        self._lock = threading.Lock()
        self.document: dict[str, Any] = {
            "format": _FORMAT,
            "run_id": run_id,
            "state": "intended",
            "started_at": started_at,
            "trust_domain": spec.trust_domain,
            "limits": asdict(spec.limits),
            "allow": list(spec.egress.allow),
            "build_scripts": list(spec.build_scripts),
        }

    def state_inputs(
        self,
        bundle: Bundle,
        sources: Mapping[str, str],
        steps: tuple[Step, ...],
        artifacts: tuple[str, ...],
    ) -> None:
        """What was asked, once it is known."""
        lockfile = bundle.files.get("pnpm-lock.yaml")
        self.document["inputs"] = {
            **{f"{name}_sha256": digest for name, digest in sources.items()},
            "files_sha256": bundle.sha256,
            "files_count": len(bundle.files),
            "left_out": dict(bundle.left_out),
            "lockfile_sha256": None if lockfile is None else hashlib.sha256(lockfile).hexdigest(),
            "artifacts": list(artifacts),
        }
        self.document["steps"] = [
            {
                "name": step.name,
                "argv": None if step.argv is None else list(step.argv),
                "shell": step.shell,
                "timeout_ms": step.timeout_ms,
                "idle_timeout_ms": step.idle_timeout_ms,
                "allow_failure": step.allow_failure,
                "always": step.always,
                "services": [
                    {
                        "name": service.name,
                        "argv": None if service.argv is None else list(service.argv),
                        "shell": service.shell,
                        "port": service.port,
                        "env_names": sorted(service.env),
                    }
                    for service in step.services
                ],
                "env_names": sorted(step.env),
                "keeps": list(step.keeps),
                "egress": None if step.egress is None else list(step.egress.allow),
            }
            for step in steps
        ]

    def state_toolchain(self, toolchain: Mapping[str, str]) -> None:
        """With what it is done."""
        self.document["toolchain"] = dict(toolchain)

    def state_layer(
        self,
        key: str,
        sha256: str,
        *,
        cached: bool,
        base: str | None,
        packages_count: int,
        fetched_bytes: int,
        signatures: Signatures | None,
    ) -> None:
        """Which dependency layer the steps stand on, and what was fetched and checked for it.

        Args:
            base: The key of the earlier layer that this one started from.
        """
        self.document["layer"] = {
            "key": key,
            "sha256": sha256,
            "cached": cached,
            "base": base,
            "packages_count": packages_count,
            "fetched_bytes": fetched_bytes,
            "signatures": None if signatures is None else asdict(signatures),
        }

    def state_builds(self, layer: Layer, folders: Sequence[str]) -> None:
        """What the layer is after the build scripts of the packages in these folders."""
        self.document["layer"]["build_scripts"] = {
            "key": layer.key,
            "sha256": layer.sha256,
            "folders": list(folders),
        }

    def end(
        self,
        *,
        ended_at: float,
        verdict: Verdict,
        reason: Reason | None,
        results: tuple[StepResult, ...],
        denied: tuple[Denial, ...],
        egress: Sequence[Mapping[str, Any]],
        manifest: Mapping[str, Any],
    ) -> None:
        """What came of it."""
        with self._lock:
            self.document |= {
                "state": "ended",
                "ended_at": ended_at,
                "verdict": str(verdict),
                "reason": None if reason is None else asdict(reason),
                "results": [result_to_json(result) for result in results],
                "denied": [asdict(denial) for denial in denied],
                "egress": list(egress),
                "manifest": dict(manifest),
            }

    def write(self) -> None:
        """Makes the record durable, in one step. Blocks.

        Raises:
            OSError: it could not be written.
        """
        if self._path is not None:
            with self._lock:
                write_durably(self._path, self.document)


def write_durably(path: Path, document: Mapping[str, Any]) -> None:
    """Replaces a JSON file: afterwards the new one is on the disk, or the old one still is."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        with partial.open("w", encoding="utf-8") as writer:
            json.dump(document, writer, indent=2, ensure_ascii=False)
            writer.write("\n")
            writer.flush()
            os.fsync(writer.fileno())
        partial.replace(path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def result_to_json(result: StepResult) -> dict[str, Any]:
    """A step's result as plain data."""
    plain = {
        name: getattr(result, name)
        for name in (
            "name",
            "started_at",
            "exit_code",
            "signal",
            "duration_ms",
            "log_offset_bytes",
            "log_bytes",
            "cached",
        )
    }
    return plain | {
        "status": str(result.status),
        "argv": list(result.argv),
        "usage": None if result.usage is None else asdict(result.usage),
        "tests": None if result.tests is None else asdict(result.tests),
        "reason": None if result.reason is None else asdict(result.reason),
        "isolation": isolation_to_json(result.isolation),
    }


def isolation_to_json(isolation: Isolation | None) -> dict[str, Any] | None:
    """An isolation report as plain data."""
    if isolation is None:
        return None
    controls = {name: asdict(control) for name, control in isolation.controls.items()}
    return {"backend": isolation.backend, "controls": controls}
