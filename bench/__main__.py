"""`python -m bench [--quick] [--only ROWS] [--json FILE]`: the table of figures, as each is known.

Exit code 0 when every row has a figure, targets met or not; the last lines name those missed.
"""

import argparse
import asyncio
import json
import os
import platform
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from bench import (
    bare,
    rows_cold,
    rows_end,
    rows_jobs,
    rows_load,
    rows_start,
    rows_warm,
    rows_worker,
)
from bench.pairs import QUICK, Row, Scale

_MEASURES = (
    rows_start.measure,
    rows_worker.measure,
    rows_warm.measure,
    rows_cold.measure,
    rows_cold.measure_transformer,
    rows_load.measure,
    rows_end.measure,
    rows_end.measure_worker,
    rows_jobs.measure,
)
_LINE = "{:<66} {:>8} {:>8} {:>5} {:<6}  {:>22}  {:>6}  {:<9} {}"
_HEAD = ("row", "median", "p99", "n", "", "beside (median)", "ratio", "target", "")


def describe_machine() -> dict[str, object]:
    return {
        "cpus_count": os.cpu_count(),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "is_root": os.geteuid() == 0,
        "load_average": round(os.getloadavg()[0], 2),
    }


def show(row: Row) -> None:
    figures = row.as_json()
    beside = f"{row.beside} {figures['beside_median']:.1f}" if row.beside else ""
    verdict = {None: "", True: "met", False: "MISSED"}[row.met]
    print(
        _LINE.format(
            row.name,
            f"{row.median:.2f}",
            f"{row.p99:.2f}",
            len(row.samples),
            row.unit,
            beside,
            "" if row.ratio is None else f"{row.ratio:.2f}",
            figures["target"] or "",
            verdict,
        ).rstrip(),
        flush=True,
    )


def name_of(measure: Callable[[Scale], AsyncIterator[Row]]) -> str:
    """`jobs` for what `rows_jobs.py` measures."""
    return measure.__module__.rpartition("rows_")[2]


async def measure_all(scale: Scale, only: str | None) -> list[Row]:
    rows = []
    for measure in _MEASURES:
        if only not in (None, name_of(measure)):
            continue
        async for row in measure(scale):
            show(row)
            rows.append(row)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a few rounds: its times mean nothing")
    names = sorted(set(map(name_of, _MEASURES)))
    parser.add_argument("--only", choices=names, help="the rows of one file")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write one JSON object")
    options = parser.parse_args()
    machine = describe_machine()
    print(", ".join(f"{name} {value}" for name, value in machine.items()))
    print(_LINE.format(*_HEAD).rstrip())
    bare.use_pidfds()
    rows = asyncio.run(measure_all(QUICK if options.quick else Scale(), options.only))
    missed = [row.name for row in rows if row.met is False]
    print("\nmissed: " + "; ".join(missed) if missed else "\nevery target was met")
    if options.json is not None:
        document = {
            "machine": machine,
            "quick": options.quick,
            "rows": [row.as_json() for row in rows],
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n")


main()
