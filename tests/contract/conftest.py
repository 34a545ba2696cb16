"""The sandboxes that the contract holds for. Adding one here runs every test on it too."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cloche
import cloche.sync
from needs import BOX, require_facts

KINDS = {
    "process": (cloche.create_process_sandbox, cloche.sync.create_process_sandbox),
    "worker": (cloche.create_worker_sandbox, cloche.sync.create_worker_sandbox),
}
# The process sandbox's for JavaScript, beside the default.
RUNTIMES = ("node", "deno")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "kinds(*names): the kinds of sandbox that the contract makes this promise for; else all",
        "every_runtime: also runs on a process sandbox for each other JavaScript runtime",
    ):
        config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Names the kinds that a test is for: those of its `kinds` marker, all without one."""
    if "kind" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("kinds")
        kinds = list(marker.args if marker else KINDS)
        if metafunc.definition.get_closest_marker("every_runtime"):
            kinds += [f"process-{runtime}" for runtime in RUNTIMES]
        metafunc.parametrize("kind", kinds, scope="module", indirect=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leaves out what another runtime does not run."""
    items[:] = [item for item in items if not _is_of_another_language(item)]


def _is_of_another_language(item: pytest.Item) -> bool:
    params = (
        item.callspec.params
        if isinstance(item, pytest.Function) and hasattr(item, "callspec")
        else {}
    )
    return "-" in str(params.get("kind", "")) and params.get("language") == "python"


@pytest.fixture(scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    """Which sandbox: `process`, `worker`, or `process-node` and the like."""
    kind, _, runtime = str(request.param).partition("-")
    facts = (f"runtime-{runtime}",) if runtime else ("runtime-bun", "runtime-python")
    require_facts(*BOX, *(facts if kind == "process" else ()))
    return str(request.param)


@pytest.fixture(scope="module")
def create(kind: str) -> Callable[..., Any]:
    """Makes a sandbox to be awaited."""
    return _of_kind(kind, 0)


@pytest.fixture(scope="module")
def create_sync(kind: str) -> Callable[..., Any]:
    """Makes a sandbox for use without `await`."""
    return _of_kind(kind, 1)


def _of_kind(kind: str, which: int) -> Callable[..., Any]:
    name, _, runtime = kind.partition("-")
    make: Callable[..., Any] = KINDS[name][which]
    return (lambda *args, **fields: make(*args, runtime=runtime, **fields)) if runtime else make


@pytest.fixture(scope="module")
def sandbox(create_sync: Callable[..., Any]) -> Iterator[Any]:
    """A started sandbox with default options, for tests that leave it as it was."""
    with create_sync() as started:
        yield started
