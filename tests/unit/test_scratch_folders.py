"""Folders for a while: whose they are, and that nothing stays of them however their owner ends."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cloche.linux import scratch
from cloche.linux.locks import try_hold
from cloche.linux.scratch import scratch_folder


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """Stands for /tmp."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def leave(place, name="cloche-scratch-left"):
    """What a killed process leaves."""
    folder = place / name
    (folder / "a").mkdir(parents=True, mode=0o700)
    (folder / "a" / "b").write_text("left")
    return folder


def test_a_folder_is_empty_private_and_gone_at_the_end(place):
    with scratch_folder() as folder:
        assert folder.parent == place and not list(folder.iterdir())
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "a").mkdir()
        (folder / "a" / "b").write_text("")
    assert not list(place.iterdir())


def test_a_folder_is_gone_after_an_error_too(place):
    with pytest.raises(KeyError), scratch_folder():
        raise KeyError
    assert not list(place.iterdir())


def test_a_folder_that_somebody_has_cleared_away_is_no_failure(place):
    with scratch_folder() as folder:
        folder.rmdir()
    assert not list(place.iterdir())


def test_what_a_killed_process_left_is_removed_by_the_next(place):
    left, other = leave(place), leave(place, "somebody-elses")
    with scratch_folder():
        assert not left.exists()
    assert (other / "a" / "b").exists()


def test_what_is_held_is_let_be(place):
    with scratch_folder() as first:
        (first / "a").write_text("mine")
        with scratch_folder() as second:
            assert (first / "a").read_text() == "mine" and first != second
        assert first.exists()


def test_a_link_leads_nowhere(place):
    aim = leave(place, "aim")
    link = place / "cloche-scratch-link"
    link.symlink_to(aim)
    (place / "cloche-scratch-file").write_text("a file")
    leave(place).joinpath("a", "c").symlink_to(aim)
    with scratch_folder():
        pass
    assert (aim / "a" / "b").exists() and link.is_symlink()
    assert not (place / "cloche-scratch-left").exists()  # the control


def test_the_folder_of_another_user_is_let_be(place, monkeypatch):
    left = leave(place)
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
        with scratch_folder():
            pass
    assert left.exists()
    with scratch_folder():  # the control
        pass
    assert not left.exists()


@pytest.mark.parametrize("is_gone", [False, True])
def test_a_folder_that_was_taken_for_a_leftover_is_not_used(place, monkeypatch, is_gone):
    made, holders = [], []

    def make(prefix):
        folder = Path(make_really(prefix=prefix))
        made.append(folder)
        if len(made) == 1 and is_gone:
            folder.rmdir()
        elif len(made) == 1:
            holders.append(os.open(folder, os.O_RDONLY))
            assert try_hold(holders[0])
        return str(folder)

    make_really = tempfile.mkdtemp
    monkeypatch.setattr(scratch.tempfile, "mkdtemp", make)
    with scratch_folder() as folder:
        assert folder == made[1] and folder.exists()
    for descriptor in holders:
        os.close(descriptor)


@pytest.mark.live
def test_a_killed_process_leaves_what_the_next_one_removes(place):
    program = (
        "import time, cloche.linux.scratch as s\n"
        "with s.scratch_folder() as folder:\n"
        "    (folder / 'a').write_text('')\n"
        "    print(folder, flush=True)\n"
        "    time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program],
        env={**os.environ, "TMPDIR": str(place)},
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            left = Path(process.stdout.readline().strip())
            with scratch_folder():
                assert (left / "a").exists()  # the control: it is still held
        finally:
            process.send_signal(signal.SIGKILL)
    assert (left / "a").exists()
    with scratch_folder():
        assert not left.exists()
