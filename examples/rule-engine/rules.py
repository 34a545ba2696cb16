"""A rule engine: rules that customers typed decide about orders.

A rule is JavaScript, sees the order and one tool, and says `accept` or `review`. One that loops or
throws costs 100 ms of CPU at most and decides nothing: a person looks at the order then.
"""

from __future__ import annotations

import asyncio
from typing import Any

import cloche

RULES = {
    "large order": "order.total > 1000 ? 'review' : 'accept'",
    "new customer": """
        const history = await tools.orders_of(order.customer)
        history.length === 0 && order.total > 200 ? "review" : "accept"
    """,
}
BROKEN_RULES = {
    "typo": "order.totl.toFixed(2) > 10 ? 'review' : 'accept'",
    "never ends": "while (true) {}",
}
ORDERS = [
    {"id": 1, "customer": "c-17", "total": 80},
    {"id": 2, "customer": "c-99", "total": 450},
    {"id": 3, "customer": "c-17", "total": 4200},
]


async def orders_of(customer: str) -> list[dict[str, Any]]:
    """What a rule may know of a customer: no more than this function gives."""
    return [{"id": 7, "total": 60}] if customer == "c-17" else []


async def decide(
    sandbox: cloche.WorkerSandbox, rules: dict[str, str], order: dict[str, Any]
) -> None:
    """Prints why a person should look at an order, or that nobody needs to."""
    reasons = []
    for name, rule in rules.items():
        result = await sandbox.run(rule, {"order": order}, tools={"orders_of": orders_of})
        if result.value != "accept":  # nor has a rule a value that failed
            reasons.append(f"{name}: {result.error or result.value}")
    print(f"order {order['id']}", *(reasons or ["accept"]), sep="\n  ")


async def main() -> None:
    """Decides about all orders, and about the first once more with rules that do not work."""
    async with cloche.create_worker_sandbox(cpu_time_ms=100) as sandbox:
        for order in ORDERS:
            await decide(sandbox, RULES, order)
        print("with broken rules as well:")
        await decide(sandbox, RULES | BROKEN_RULES, ORDERS[0])


if __name__ == "__main__":
    asyncio.run(main())
