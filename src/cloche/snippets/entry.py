"""The functions that callers start with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Unpack

from cloche.backends.namespaces import NamespacesBackend
from cloche.model.snippet import RunOptions, SandboxOptions
from cloche.snippets.process import ProcessSandbox
from cloche.snippets.sandbox import check_options, merge_fields
from cloche.snippets.worker import WorkerSandbox

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cloche.model.snippet import RunFields, SandboxFields, SandboxResult


def create_process_sandbox(
    options: SandboxOptions | None = None, **fields: Unpack[SandboxFields]
) -> ProcessSandbox:
    """A sandbox that runs each snippet or program in a fresh box.

    Use it with `async with`, or call `dispose` at the end.

    Args:
        options: Options of the sandbox, the defaults of its runs.
        **fields: Their fields by keyword; these win.

    Raises:
        InvalidRequestError: a field is unknown or wrong.
    """
    check_options(options, SandboxOptions)
    return ProcessSandbox(SandboxOptions.of(options, fields), NamespacesBackend())


def create_worker_sandbox(
    options: SandboxOptions | None = None, **fields: Unpack[SandboxFields]
) -> WorkerSandbox:
    """A sandbox that runs each snippet in a fresh engine instance of a killable host process.

    Use it with `async with`, or call `dispose` at the end.

    Args:
        options: Options of the sandbox, the defaults of its runs.
        **fields: Their fields by keyword; these win.

    Raises:
        InvalidRequestError: a field is unknown or wrong, or not for a worker sandbox.
    """
    check_options(options, SandboxOptions)
    return WorkerSandbox(SandboxOptions.of(options, fields), NamespacesBackend())


async def run(
    code: str,
    context: Mapping[str, Any] | None = None,
    options: RunOptions | None = None,
    **fields: Unpack[RunFields],
) -> SandboxResult:
    """Runs code once, on a process sandbox made for it.

    See `ProcessSandbox.run` for arguments, result and errors. Whoever runs more than once makes
    a sandbox and keeps it: starting one costs a tenth of a second.
    """
    once = {"pool_size": 0, **merge_fields(options, fields)}  # a warm box would wait for nobody
    async with create_process_sandbox(**once) as sandbox:
        return await sandbox.run(code, context)
