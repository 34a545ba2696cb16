"""An AI tool call: a model answers by writing Python that calls the tools it was given.

The code runs in a box of its own. What it may do is what the tools do; a tool tells it in words
what is wrong (`cloche.ToolError`), everything else that a tool raises stays hidden. Loops and sums
happen in the code, so the model does not have to read a thousand rows to add them up.
"""

from __future__ import annotations

import asyncio

import cloche

# As a model would write it for: "In which month of 2025 did we sell most, and how much?"
ANSWER = """
import asyncio

months = await asyncio.gather(*(tools.sales(year=2025, month=m) for m in range(1, 13)))
totals = {m: sum(sale["amount"] for sale in sales) for m, sales in enumerate(months, 1)}
best = max(totals, key=totals.get)
{"month": best, "total": totals[best], "months": len(totals)}
"""
# The next attempt asks for what there is not, and reads the reply.
WRONG = """
try:
    answer = await tools.sales(year=1875, month=1)
except Exception as error:
    answer = f"{type(error).__name__}: {error}"
answer
"""


async def sales(year: int, month: int) -> list[dict[str, int]]:
    """The sales of a month; a real one would ask a database, with this caller's own rights."""
    if year < 2020:
        raise cloche.ToolError("there are no sales before 2020")
    await asyncio.sleep(0.01)
    return [{"day": day, "amount": (day * month) % 97} for day in range(1, 29)]


async def main() -> None:
    """Runs what a model might have written."""
    options = cloche.SandboxOptions(language="python", tools={"sales": sales})
    async with cloche.create_process_sandbox(options) as sandbox:
        for code in (ANSWER, WRONG, "open('/etc/shadow').read()"):
            result = await sandbox.run(code)
            print(result.value if result.ok else f"{result.error_code}: {result.error}")


if __name__ == "__main__":
    asyncio.run(main())
