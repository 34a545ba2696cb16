"""The contract in code, for whoever writes a backend or an engine.

    from cloche.testing import PROMISES, Subject

    @pytest.mark.parametrize("promise", PROMISES, ids=lambda promise: promise.name)
    def test_the_contract_is_kept(promise):
        if why := promise.why_not(SUBJECT):
            pytest.skip(why)
        asyncio.run(promise.check(SUBJECT))

`python -m cloche.testing` runs it on this host's own sandboxes. `FakeBackend` stands in for a
backend where what is above it is tested.
"""

from __future__ import annotations

from cloche.testing.conformance import PROMISES
from cloche.testing.fake import FakeBackend, FakeBox
from cloche.testing.subject import Promise, Subject

__all__ = ["PROMISES", "FakeBackend", "FakeBox", "Promise", "Subject"]
