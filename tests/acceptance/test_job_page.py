"""What the job of `examples/vite-react` delivers is a page that works in a browser."""

import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from browser import Browser, require_chromium
from needs import BOX, JOB, needs

CLOCHE = str(Path(sys.executable).with_name("cloche"))
EXAMPLE = Path(__file__).parents[2] / "examples/vite-react"
PLUS, MINUS = "+", "\u2212"
SHARES = "[...document.querySelectorAll('ol li')].map((item) => item.textContent)"
pytestmark = [
    needs(*BOX, *JOB),
    pytest.mark.xdist_group("job-page"),
    pytest.mark.timeout(180),  # the first job of a fresh machine fetches its packages
]


class Quiet(SimpleHTTPRequestHandler):
    """Files of a folder, without a line for each request."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which the files of `folder` can be had meanwhile."""
    handler = partial(Quiet, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The artifacts of the example, as the command line delivers them."""
    require_chromium()
    out = tmp_path_factory.mktemp("job") / "out"
    command = [CLOCHE, "job", "run", str(EXAMPLE), "--without", "test", "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return out / "artifacts"


@pytest.fixture
def browser() -> Iterator[Browser]:
    # Short, as the path of a socket below it may have 107 bytes only.
    with tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as folder:
        with Browser(Path(folder)) as opened:
            yield opened


def shares(browser: Browser, count: int) -> list[str]:
    """What the page shows, once it shows so many."""
    found: list[str] = browser.until(f"(list => list.length === {count} && list)({SHARES})")
    return found


def button(text: str) -> str:
    return f"[...document.querySelectorAll('button')].find((each) => each.textContent === '{text}')"


@pytest.mark.parametrize("folder", ["", "some/other/folder"])
def test_the_built_page_splits_the_bill_and_splits_anew_for_each_guest_more(
    site: Path, browser: Browser, tmp_path: Path, folder: str
) -> None:
    root = tmp_path / "root"
    place = root / folder
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(site / "dist")
    with served(root) as address:
        browser.open(f"{address}/{folder}/")
        assert shares(browser, 3) == ["32.20"] * 3
        browser.click(button(PLUS))
        assert shares(browser, 4) == ["24.15"] * 4
        browser.click(button(MINUS))
        browser.click(button(MINUS))
        assert shares(browser, 2) == ["48.30"] * 2
    assert browser.errors == []


def test_the_built_page_says_so_when_the_bill_is_not_a_number(site: Path, browser: Browser) -> None:
    alert = "document.querySelector('[role=alert]')"
    field = "document.querySelector('input')"
    with served(site / "dist") as address:
        browser.open(f"{address}/")
        assert shares(browser, 3)
        assert browser.until(f"{alert} === null")
        browser.write(field, "abc")
        assert browser.until(f"{alert}?.textContent") == "The bill is not a number."
        assert browser.until(f"{SHARES}.length === 0")
        browser.write(field, "10")
        assert shares(browser, 3) == ["3.84", "3.83", "3.83"]
    assert browser.errors == []


def test_an_error_of_a_page_would_be_noticed(browser: Browser, tmp_path: Path) -> None:
    page = "<link rel=icon href=data:,><script>console.error('said')</script>"
    page += "<script>throw new Error('thrown')</script><script src=missing.js></script>"
    (tmp_path / "index.html").write_text(page)
    with served(tmp_path) as address:
        browser.open(f"{address}/")
        noticed = "\n".join(browser.errors)
    for sign in ("said", "Error: thrown", "missing.js"):
        assert sign in noticed
    assert len(browser.errors) == 3
