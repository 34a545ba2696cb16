"""What the conformance suite looks at, and what a promise is."""

from __future__ import annotations

import asyncio
import inspect
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping

    from cloche.model.snippet import SandboxResult

Need = Literal["files", "programs", "network", "javascript", "typescript", "python"]

# More than any promise takes on a busy machine: one that is not kept must not hang.
DEADLINE_S: Final = 90.0


class AnySandbox(Protocol):
    """What a promise uses of a sandbox."""

    async def __aenter__(self) -> Self:
        """Makes ready what every run needs."""
        ...

    async def __aexit__(self, *_: object) -> None:
        """Disposes."""
        ...

    @property
    def run(self) -> Callable[..., Coroutine[Any, Any, SandboxResult]]:
        """Runs code to its result; see `cloche.snippets.sandbox.Sandbox.run`."""
        ...

    async def dispose(self) -> None:
        """Ends the runs in flight, leaves nothing."""
        ...


@dataclass(slots=True)
class Subject:
    """Makes sandboxes of one kind on one backend, and says what they can do.

    Entered (`async with`), it keeps one sandbox for all promises that need no special one; each
    promise has its own otherwise. Belongs to the event loop that entered it.

    Attributes:
        name: For reports.
        make: Makes a sandbox from the fields of `SandboxOptions`, as `cloche.create_…_sandbox`.
        kind: Which of the two: a worker has no files, programs, stdin, arguments or variables.
        languages: What it runs; promises about no language in particular use the first.
        runtimes: Names that `result.runtime` may have.
        fields: Given to every sandbox, such as {"runtime": "node"}.
        has_files: It has a private /workspace.
        has_programs: It runs programs, which may start processes.
        has_network: It can let code reach hosts.
    """

    name: str
    make: Callable[..., AnySandbox]
    kind: Literal["process", "worker"] = "process"
    languages: tuple[str, ...] = ("javascript", "typescript", "python")
    runtimes: tuple[str, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)
    has_files: bool = True
    has_programs: bool = True
    has_network: bool = True
    _shared: AnySandbox | None = None
    _is_entered: bool = False

    @property
    def language(self) -> str:
        """Its first language."""
        return self.languages[0]

    def create(self, **fields: Any) -> AnySandbox:
        """A new sandbox with these fields; whoever asked disposes of it."""
        return self.make(**{"language": self.language, **self.fields, **fields})

    async def run(self, code: Any, context: Any = None, **fields: Any) -> SandboxResult:
        """Runs code on a sandbox with default options, which stays as it was."""
        if self._shared is None:
            self._shared = self.create()
        return await self._shared.run(code, context, **fields)

    async def each(self, codes: Mapping[str, str], **fields: Any) -> AsyncIterator[SandboxResult]:
        """Runs, for each of its languages, the code under that language's name.

        Code under `javascript` serves TypeScript too, where that has none of its own.
        """
        for language in self.languages:
            code = codes.get(language) or codes.get("javascript" if language != "python" else "")
            if code is not None:
                yield await self.run(code, language=language, **fields)

    def lacks(self, need: Need) -> str | None:
        """Why it does not have what a promise is about; None when it does."""
        has = {"files": self.has_files, "programs": self.has_programs, "network": self.has_network}
        if has.get(need, need in self.languages):
            return None
        return f"it has no {need}" if need in has else f"it does not run {need}"

    async def rest(self) -> None:
        """Ends the shared sandbox, unless the subject is entered. Idempotent."""
        if not self._is_entered and self._shared is not None:
            shared, self._shared = self._shared, None
            await shared.dispose()

    async def __aenter__(self) -> Self:
        """Keeps one sandbox from now on."""
        self._is_entered = True
        return self

    async def __aexit__(self, *_: object) -> None:
        """Ends it."""
        self._is_entered = False
        await self.rest()


@dataclass(frozen=True, slots=True)
class Promise:
    """One thing that a user may rely on.

    Attributes:
        number: Its place in the list; the hundreds are topics. A number is never used again.
        name: Its name, in words.
        text: What is promised, in one sentence.
        topic: The part of the contract that it is from.
        needs: What a subject must have for it to apply.
        without: What a subject must not have: the promise is the refusal.
        kinds: The kinds of sandbox that it is made for.
        act: Raises AssertionError where it is not kept.
    """

    number: int
    name: str
    text: str
    topic: str
    needs: tuple[Need, ...]
    without: tuple[Need, ...]
    kinds: tuple[str, ...]
    act: Callable[[Subject], Awaitable[None]]

    def why_not(self, subject: Subject) -> str | None:
        """Why it does not apply to a subject; None when it does."""
        if subject.kind not in self.kinds:
            return f"it is made for the {' and '.join(self.kinds)} sandbox"
        for need in self.needs:
            if (why := subject.lacks(need)) is not None:
                return why
        for need in self.without:
            if subject.lacks(need) is None:
                return f"it has {need}; this is about those without"
        return None

    async def check(self, subject: Subject) -> None:
        """Looks whether it is kept.

        Raises:
            AssertionError: it is not; the message tells what was seen.
        """
        __tracebackhide__ = True
        try:
            async with asyncio.timeout(DEADLINE_S):
                await self.act(subject)
        except TimeoutError as error:
            told = f"{self.name}: no end after {DEADLINE_S:g} s"
            raise AssertionError(told) from error
        finally:
            await subject.rest()


def promise(
    number: int,
    *,
    needs: tuple[Need, ...] = (),
    without: tuple[Need, ...] = (),
    kinds: tuple[str, ...] = ("process", "worker"),
) -> Callable[[Callable[[Subject], Awaitable[None]]], Promise]:
    """Makes a promise of a function: its name is the promise's, its first line the text.

    The lines after the first quote the contract.
    """

    def make(act: Callable[[Subject], Awaitable[None]]) -> Promise:
        module = inspect.getmodule(act)
        return Promise(
            number=number,
            name=getattr(act, "__name__", "").replace("_", " "),
            text=(inspect.getdoc(act) or "").partition("\n")[0],
            topic=((module and module.__doc__) or "").partition(":")[0],
            needs=needs,
            without=without,
            kinds=kinds,
            act=act,
        )

    return make
