"""The sandboxes of this host, as subjects."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cloche.snippets.entry import create_process_sandbox, create_worker_sandbox
from cloche.testing.subject import Subject

if TYPE_CHECKING:
    from collections.abc import Callable

_SCRIPTS: Final = ("javascript", "typescript")


def _process(runtime: str, *languages: str) -> Callable[[], Subject]:
    return lambda: Subject(
        f"process-{runtime}",
        create_process_sandbox,
        languages=languages,
        runtimes=(runtime,),
        fields={"runtime": runtime},
    )


def _worker(engine: str, *languages: str) -> Callable[[], Subject]:
    return lambda: Subject(
        f"worker-{languages[0]}",
        create_worker_sandbox,
        kind="worker",
        languages=languages,
        runtimes=(engine,),
        has_files=False,
        has_programs=False,
        has_network="javascript" in languages,
    )


# By name. Each call makes a new one.
SUBJECTS: Final[dict[str, Callable[[], Subject]]] = {
    "process-bun": _process("bun", *_SCRIPTS),
    "process-node": _process("node", *_SCRIPTS),
    "process-deno": _process("deno", *_SCRIPTS),
    "process-python": _process("python", "python"),
    "worker-javascript": _worker("quickjs-ng", *_SCRIPTS),
    "worker-python": _worker("monty", "python"),
}
