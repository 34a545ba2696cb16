"""What a user waits for before anything runs: the import and the command line."""

import sys
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

from bench import bare
from bench.pairs import Row, Scale, Target, interleave


async def measure(scale: Scale) -> AsyncIterator[Row]:
    """Whole processes, from their spawn to their end, beside an interpreter that does nothing."""
    command = str(Path(sys.executable).with_name("cloche"))
    commands = {
        "import cloche": ([sys.executable, "-c", "import cloche"], Target("median", 100)),
        "cloche --help": ([command, "--help"], Target("median", 200)),
        "cloche run -e 1": ([command, "run", "-e", "1"], None),
    }
    nothing = "python -c pass"
    took = await interleave(
        {
            nothing: partial(bare.spawn, [sys.executable, "-c", "pass"]),
            **{name: partial(bare.spawn, argv) for name, (argv, _) in commands.items()},
        },
        scale.starts_count,
        warmups_count=1,
    )
    for name, (_, target) in commands.items():
        yield Row(name, took[name], "ms", nothing, took[nothing], target)
