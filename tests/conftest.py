"""What all tests share: facts of the host, the case marker, the outside observer."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import cloche
import cloche.sync
from needs import BOX, require_facts
from observer import Snapshot, adopt_orphans, leftovers, settled

_TESTS = Path(__file__).parent
# Tests here start boxes; others may say `pytest.mark.live`.
_LIVE_FOLDERS = ("acceptance", "contract", "escape", "integration")


def pytest_configure(config: pytest.Config) -> None:
    for line in (
        "needs(*facts): facts of the host, as `cloche doctor` names them, that the test rests on",
        "case(*ids): ids of the collected attack cases that the test covers",
        "live: the test starts processes or boxes; the outside observer looks after it",
    ):
        config.addinivalue_line("markers", line)


def _is_live(node: pytest.Item) -> bool:
    folder = node.path.relative_to(_TESTS).parts[0]
    return folder in _LIVE_FOLDERS or node.get_closest_marker("live") is not None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for marker in item.iter_markers("needs"):
        require_facts(*marker.args)


@pytest.fixture(scope="session", autouse=True)
def _own_tree(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives this test process its orphans and a temporary folder of its own.

    At the end of the session nothing at all may be left.
    """
    adopt_orphans()
    before_folder, tempfile.tempdir = tempfile.tempdir, str(tmp_path_factory.mktemp("temporary"))
    cloche.sync._background_loop()  # it lives as long as the process, with its descriptors
    before = Snapshot.take()
    yield
    left = leftovers(before, allow_residents=False)
    tempfile.tempdir = before_folder
    assert not left, "left at the end of the session:\n" + "\n".join(left)


@pytest.fixture(scope="module", autouse=True)
def _nothing_is_left_of_a_module(_own_tree: None) -> Iterator[None]:
    """Set up before, and torn down after, every sandbox that a module keeps."""
    before = Snapshot.take()
    yield
    left = leftovers(before, allow_residents=False)
    assert not left, "left by this module:\n" + "\n".join(left)


@pytest.fixture(autouse=True)
def _nothing_is_left_of_a_test(request: pytest.FixtureRequest) -> Iterator[None]:
    if not _is_live(request.node):
        yield
        return
    before = settled()
    yield
    left = leftovers(before, allow_residents=True)
    assert not left, "left by this test:\n" + "\n".join(left)


@pytest.fixture(scope="module")
def shared_sandbox() -> Iterator[cloche.sync.SyncSandbox]:
    """A started process sandbox with default options, for tests that leave it as it was."""
    require_facts(*BOX, "runtime-bun", "runtime-python")
    with cloche.sync.create_process_sandbox(timeout_ms=5000) as sandbox:
        yield sandbox


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that any user may enter and read; those of pytest are closed to other users."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder
