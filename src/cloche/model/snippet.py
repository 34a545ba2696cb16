"""What a snippet or program is given, and what comes of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, Self, TypedDict

from cloche.errors import RUN_ERRORS, SandboxErrorCode
from cloche.model import snippet_fields
from cloche.model.outcome import Usage
from cloche.model.plan import Isolation, Mount

if TYPE_CHECKING:
    from cloche.model.abort import AbortSignal

Language = Literal["javascript", "typescript", "python"]
RuntimeName = Literal["bun", "deno", "node", "python"]
Mode = Literal["snippet", "program"]
Stream = Literal["stdout", "stderr"]
_NOTHING: Mapping[str, Any] = MappingProxyType({})


class RunFields(TypedDict, total=False):
    """The fields of one run; `SandboxOptions` says what each means."""

    timeout_ms: int
    cpu_time_ms: int | None
    queue_timeout_ms: int
    memory_limit_mb: int
    pids_limit: int
    cpu_limit: float | None
    allow_network: bool
    allow_hosts: Sequence[str]
    allow_fs: bool
    mounts: Sequence[Mount]
    scratch_limit_mb: int
    files: Mapping[str, str | bytes]
    collect: Sequence[str]
    language: Language
    runtime: RuntimeName | None
    mode: Mode
    stdin: str | bytes
    args: Sequence[str]
    env: Mapping[str, str]
    tools: Mapping[str, Callable[..., Any]]
    on_output: Callable[[Stream, str], None] | None
    output_limit_bytes: int
    value_limit_bytes: int
    signal: AbortSignal | None
    logger: Any
    require: Mapping[str, str]


class SandboxFields(RunFields, total=False):
    """The fields of a sandbox: those of a run, as defaults, and its own."""

    backend: Literal["auto", "namespaces"]
    trust_domain: str
    pool_size: int | None
    max_pending: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxOptions:
    """Options of a sandbox, the defaults of its runs. Every field is checked when it is made.

    Attributes:
        timeout_ms: Wall clock, from the start of the code to its converted result; 1 … 86,400,000.
        cpu_time_ms: CPU time of everything the run starts; None for no limit.
        queue_timeout_ms: The longest wait for a free slot.
        memory_limit_mb: MiB that the run may hold, its scratch included.
        pids_limit: Processes and threads.
        cpu_limit: CPUs, as a quota; None for none.
        allow_network: Public addresses.
        allow_hosts: These hosts only.
        allow_fs: A private /workspace and /tmp, gone after the run.
        mounts: Host folders seen below /workspace, read-only unless `unsafe_writable`.
        scratch_limit_mb: MiB of private files.
        files: Path below /workspace → text or bytes, laid in before the run; implies `allow_fs`.
        collect: Globs whose files come back in `SandboxResult.files`; implies `allow_fs`.
        language: javascript, typescript or python.
        runtime: bun or python; None for the language's own.
        mode: `snippet` has a value; `program` is the runtime's main module.
        stdin: What the code reads on stdin.
        args: Arguments of a program.
        env: Variables beside the documented few.
        tools: Name → async callable, visible to a snippet as `await tools.name(…)`; what it
            raises stays hidden, unless it is a `cloche.ToolError`.
        on_output: Called with (stream, text) as it comes; it must not block.
        output_limit_bytes: Kept per stream: the first half and the last half.
        value_limit_bytes: Of the value as JSON.
        signal: Ends the run when it fires.
        logger: A `logging.Logger` for the sandbox's own messages.
        require: Control → mechanism that must enforce it, such as {"memory": "cgroup"}.
        backend: auto or namespaces.
        trust_domain: Nothing that outlives a run is shared between two of them.
        pool_size: The most warm boxes or worker hosts that are kept ready; None for one per CPU,
            0 for no warm boxes.
        max_pending: Runs that may wait for a slot.

    Raises:
        InvalidRequestError: a field has a wrong type or value.
    """

    timeout_ms: int = 5_000
    cpu_time_ms: int | None = None
    queue_timeout_ms: int = 30_000
    memory_limit_mb: int = 128
    pids_limit: int = 64
    cpu_limit: float | None = None
    allow_network: bool = False
    allow_hosts: Sequence[str] = ()
    allow_fs: bool = False
    mounts: Sequence[Mount] = ()
    scratch_limit_mb: int = 64
    files: Mapping[str, str | bytes] = field(default_factory=lambda: _NOTHING)
    collect: Sequence[str] = ()
    language: Language = "javascript"
    runtime: RuntimeName | None = None
    mode: Mode = "snippet"
    stdin: str | bytes = ""
    args: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    tools: Mapping[str, Callable[..., Any]] = field(default_factory=lambda: _NOTHING)
    on_output: Callable[[Stream, str], None] | None = None
    output_limit_bytes: int = 1024 * 1024
    value_limit_bytes: int = 1024 * 1024
    signal: AbortSignal | None = None
    logger: Any = None
    require: Mapping[str, str] = field(default_factory=lambda: _NOTHING)
    backend: Literal["auto", "namespaces"] = "auto"
    trust_domain: str = "local"
    pool_size: int | None = None
    max_pending: int = 1000

    def __post_init__(self) -> None:
        """Checks every field."""
        for name, check in snippet_fields.CHECKS.items():
            check(name, getattr(self, name))

    @property
    def wants_scratch(self) -> bool:
        """True when the run may write: `files` and `collect` imply `allow_fs`."""
        return self.allow_fs or bool(self.files) or bool(self.collect)

    def override(self, fields: Mapping[str, Any]) -> Self:
        """These options with some fields replaced.

        Raises:
            InvalidRequestError: a field is unknown, wrong, or belongs to the sandbox alone.
        """
        if not fields:
            return self
        snippet_fields.check_names(fields, RunFields.__annotations__, "a run")
        return dataclasses.replace(self, **fields)

    @classmethod
    def of(cls, options: Self | None, fields: Mapping[str, Any]) -> Self:
        """Options from an object, from fields, or from both (fields win)."""
        snippet_fields.check_names(fields, SandboxFields.__annotations__, "a sandbox")
        return dataclasses.replace(options, **fields) if options is not None else cls(**fields)


class RunOptions:
    """The fields of one run that differ from the sandbox's.

    Attributes:
        given: Those fields alone.
    """

    __slots__ = ("given",)

    def __init__(self, **fields: Any) -> None:
        """Takes the fields of `RunFields`.

        Raises:
            InvalidRequestError: a field is unknown or wrong.
        """
        snippet_fields.check_names(fields, RunFields.__annotations__, "a run")
        for name, value in fields.items():
            snippet_fields.CHECKS[name](name, value)
        self.given: Mapping[str, Any] = MappingProxyType(dict(fields))


@dataclass(frozen=True, slots=True)
class OutputChunk:
    """A piece of output: when (ms from the start of the code), where, what."""

    time_ms: float
    stream: Stream
    text: str


@dataclass(frozen=True, slots=True)
class RuntimeInfo:
    """The runtime that ran the code."""

    name: str
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SandboxResult:
    """What became of a run.

    Attributes:
        ok: It ended as it should; for a program: exit code 0.
        value: The snippet's value; None for a program.
        output: Both streams interleaved, as kept.
        error: What went wrong, for people.
        error_line, error_column: 1-based, in the caller's own text.
        files: What `collect` matched.
        denied: Refused egress.
        warm: The box was ready before the run was asked for.
    """

    ok: bool
    value: Any
    stdout: str
    stderr: str
    output: tuple[OutputChunk, ...]
    duration_ms: float
    queue_ms: float
    exit_code: int | None
    signal: int | None
    error: str | None
    error_code: SandboxErrorCode | None
    error_line: int | None
    error_column: int | None
    error_stack: str | None
    stdout_bytes: int
    stderr_bytes: int
    stdout_truncated: bool
    stderr_truncated: bool
    files: Mapping[str, bytes]
    denied: tuple[str, ...]
    usage: Usage
    runtime: RuntimeInfo
    isolation: Isolation
    warm: bool
    run_id: str

    def raise_for_error(self) -> Self:
        """Returns itself when `ok`, raises the matching `RunError` otherwise."""
        if self.error_code is not None:
            raise RUN_ERRORS[self.error_code](self.error or str(self.error_code))
        return self
