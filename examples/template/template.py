"""A server-side template: a page that a customer designed, filled with the shop's data.

The template is JavaScript and gives HTML. It can format and loop as it likes; it has no files, no
network and no way to another customer's page: each rendering has an engine instance of its own.
"""

from __future__ import annotations

import asyncio

import cloche

TEMPLATE = """\
const escape = (text) => String(text).replace(/[&<>"']/g, (c) => `&#${c.codePointAt(0)};`)
const price = (cents) => (cents / 100).toFixed(2) + " €"
const rows = await Promise.all(products.map(async (product) => {
  const stock = await tools.stock(product.id)
  return `  <li>${escape(product.name)}: ${price(product.cents)}${stock ? "" : " (sold out)"}</li>`
}))
return `<h1>${escape(title)}</h1>
<ul>
${rows.join("\\n")}
</ul>`
"""
PRODUCTS = [
    {"id": 1, "name": "Lamp <large>", "cents": 4990},
    {"id": 2, "name": "Chair", "cents": 12900},
]


async def stock(product: int) -> int:
    """How many are left; a real one would ask a database."""
    return {1: 4, 2: 0}[product]


async def main() -> None:
    """Renders the page, then a template that is wrong: the shop sees where."""
    async with cloche.create_worker_sandbox(cpu_time_ms=200, tools={"stock": stock}) as sandbox:
        data = {"title": "Tom & Jerry's", "products": PRODUCTS}
        page = await sandbox.run(TEMPLATE, data)
        print(page.raise_for_error().value)
        wrong = await sandbox.run(TEMPLATE.replace("price(", "prize("), data)
        print(f"line {wrong.error_line}: {wrong.error}")


if __name__ == "__main__":
    asyncio.run(main())
