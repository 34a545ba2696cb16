"""The sandboxes that the contract holds for. Adding one here runs every test on it too."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

import cloche
import cloche.sync
from needs import BOX, require_facts

KINDS = {"process": (cloche.create_process_sandbox, cloche.sync.create_process_sandbox)}


@pytest.fixture(scope="module", params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    """Which sandbox."""
    require_facts(*BOX, "runtime-bun", "runtime-python")
    return str(request.param)


@pytest.fixture(scope="module")
def create(kind: str) -> Callable[..., Any]:
    """Makes a sandbox to be awaited."""
    return KINDS[kind][0]


@pytest.fixture(scope="module")
def create_sync(kind: str) -> Callable[..., Any]:
    """Makes a sandbox for use without `await`."""
    return KINDS[kind][1]


@pytest.fixture(scope="module")
def sandbox(create_sync: Callable[..., Any]) -> Iterator[Any]:
    """A started sandbox with default options, for tests that leave it as it was."""
    with create_sync() as started:
        yield started
