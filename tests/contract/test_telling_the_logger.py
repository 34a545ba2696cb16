"""The sandbox's own messages."""

import logging
from typing import Any

import pytest


def test_the_logger_hears_of_each_run_and_never_its_text(
    sandbox: Any, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("a caller's own")
    with caplog.at_level(logging.INFO, logger.name):
        ok = sandbox.run("console.log('printed'); 'value'", logger=logger)
        failed = sandbox.run("throw new Error('thrown')", logger=logger)
        sandbox.run("1")
    messages = [record.getMessage() for record in caplog.records if record.name == logger.name]
    assert [message.partition(" after")[0] for message in messages] == [
        f"run {ok.run_id}: ok",
        f"run {failed.run_id}: SANDBOX_EXECUTION_ERROR",
    ]
    for secret in ("printed", "value", "thrown"):
        assert not any(secret in message for message in messages)
