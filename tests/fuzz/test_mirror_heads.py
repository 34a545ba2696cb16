"""The head of a box's request: whatever is taken is what a parser of all of HTTP reads, too."""

import h11
from hypothesis import example, given
from hypothesis import strategies as st

from cloche.egress.requests import Refusal, Request, read_request

PORT = 4873
GOOD = b"GET /a/-/a-1.0.0.tgz HTTP/1.1\r\nHost: 127.0.0.1:4873\r\nAccept: */*\r\n\r\n"

lines = st.sampled_from(
    [
        b"Host: 127.0.0.1:4873", b"host:localhost:4873", b"Connection: close", b"Accept: */*",
        b"Content-Length: 0", b"Content-Length: 5", b"Transfer-Encoding: chunked", b"Upgrade: x",
        b"Expect: 100-continue", b"X:", b"X: \t y \t", b" folded", b"X : y", b"",
    ]
)  # fmt: skip
first = st.sampled_from(
    [b"GET /a HTTP/1.1", b"HEAD /%2f?x HTTP/1.1", b"POST / HTTP/1.1", b"GET * "]
)
built = st.builds(
    lambda start, headers: b"\r\n".join([start, *headers, b"", b""]),
    first,
    st.lists(lines, max_size=5),
)


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    data = draw(st.just(GOOD) | built)
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        until = draw(st.integers(at, min(len(data), at + 4)))
        data = data[:at] + draw(st.binary(max_size=3)) + data[until:]
    return data


@given(damaged() | st.binary(max_size=200))
@example(GOOD)
@example(b"GET / HTTP/1.1\r\nHost: 127.0.0.1:4873\r\n\r\n")
def test_what_is_taken_is_one_whole_request_to_any_parser(data: bytes) -> None:
    end = data.find(b"\r\n\r\n")
    head = data[: end + 4] if end >= 0 else data
    request = read_request(head, PORT)
    if isinstance(request, Refusal):
        assert 400 <= request.status < 500
        assert request.what.isprintable() or not request.what
        assert len(request.what) < 1000 and request.why.isprintable()
        return
    oracle = h11.Connection(h11.SERVER)
    oracle.receive_data(head.removesuffix(b"\r\n\r\n") + b"\r\n\r\n")
    event = oracle.next_event()
    assert isinstance(event, h11.Request)
    assert (event.method.decode(), event.target.decode()) == (request.method, request.path)
    assert isinstance(oracle.next_event(), h11.EndOfMessage)
    assert oracle.trailing_data == (b"", False)
    hosts = [value.lower() for name, value in event.headers if name == b"host"]
    assert hosts in ([b"127.0.0.1:4873"], [b"localhost:4873"])
    if not request.keeps_open:
        assert oracle.our_state is h11.SEND_RESPONSE and oracle.their_state is h11.MUST_CLOSE


def test_a_plain_request_is_taken() -> None:
    assert read_request(GOOD, PORT) == Request("GET", "/a/-/a-1.0.0.tgz", keeps_open=True)
