"""One text, run twice: in a box, and outside by a plain process as the positive control.

An attack is a program that prints one JSON value: what it got hold of. The control shows that
the same text does get hold of it where no box is in the way.
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from cloche.environments.runtimes import require_runtime
from cloche.sync import SyncSandbox

_FILE_NAMES = {"python": "main.py", "javascript": "main.js", "typescript": "main.ts"}


def outside(
    code: str, *args: str, language: str = "python", cwd: Path | None = None, **options: Any
) -> Any:
    """Runs a program as a plain process of this user; returns the JSON that it prints."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, _FILE_NAMES[language])
        path.write_text(code)
        if language == "python":
            command = [sys.executable, "-I", "-S", str(path), *args]
        else:
            command = [str(require_runtime("bun").host_path), "--no-install", str(path), *args]
        done = subprocess.run(
            command, cwd=cwd or folder, capture_output=True, text=True, timeout=30, **options
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def inside(
    sandbox: SyncSandbox, code: str, *args: str, language: str = "python", **fields: Any
) -> Any:
    """Runs the same program in a box; returns the JSON that it prints."""
    result = sandbox.run(code, language=language, mode="program", args=args, **fields)
    assert result.ok, (result.error, result.stderr)
    return json.loads(result.stdout)
