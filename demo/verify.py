"""`python -m demo.verify DIR`: holds what a job delivered to DIR against its manifest.

Recomputes the size and the sha256 of each artifact, and looks for files that the manifest does not
name. Exit code 0 when all is as it says, else 1.
"""

import json
import sys
from hashlib import sha256
from pathlib import Path


def verify(out: Path) -> list[str]:
    """Shows each artifact in a line; returns what is not as the manifest says."""
    listed = json.loads((out / "manifest.json").read_text())["artifacts"]
    folder = out / "artifacts"
    wrong = []
    for entry in listed:
        path = folder / entry["path"]
        is_file = path.is_file() and not path.is_symlink()
        content = path.read_bytes() if is_file else b""
        found = {"size_bytes": len(content), "sha256": sha256(content).hexdigest()}
        is_same = is_file and all(entry[name] == value for name, value in found.items())
        shown = _show(entry["path"])
        print(
            f"{'ok' if is_same else 'NOT SO'}  {found['sha256'][:16]}…  {len(content):>7}  {shown}"
        )
        if not is_same:
            wrong.append(f"{shown} is another file than the manifest says")
    there = {path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir()}
    more = there - {folder / entry["path"] for entry in listed}
    wrong += [f"{_show(str(path.relative_to(folder)))} is not in the manifest" for path in more]
    if not listed:
        wrong.append("the manifest names no file")
    return wrong


def _show(name: str) -> str:
    """A name that a project's build chose, harmless on a terminal."""
    return name if name.isprintable() else ascii(name)


def main() -> int:
    if len(sys.argv) != 2:
        print("one argument is needed: the folder that was given to `cloche job run --out`")
        return 2
    try:
        wrong = verify(Path(sys.argv[1]))
    except FileNotFoundError as error:
        wrong = [f"{error.filename}: there is no such file"]
    print("\n".join(wrong) or "All of it is as the manifest says.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
