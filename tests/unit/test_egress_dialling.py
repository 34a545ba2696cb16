"""How the host looks a name up."""

import asyncio
import socket

from cloche.egress import dialling


def test_a_name_is_looked_up_whole_and_its_addresses_are_few_and_each_once(monkeypatch):
    asked = []

    def answer(name, port, **options):
        asked.append((name, port, options))
        addresses = ["2606:4700::1111", *(f"8.8.8.{number % 10}" for number in range(30))]
        return [(0, 0, 0, "", (address, 0)) for address in addresses]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    found = asyncio.run(dialling.resolve("api.example.test"))
    # The last dot keeps the host's search domains out.
    assert asked == [(b"api.example.test.", None, {"type": socket.SOCK_STREAM})]
    assert found == ("2606:4700::1111", *(f"8.8.8.{number}" for number in range(7)))
