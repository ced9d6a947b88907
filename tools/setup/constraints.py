"""Pins the dependencies of each extra with hashes, in constraints.txt and constraints-EXTRA.txt.

    constraints.py             keeps the present pins and adds those that are missing
    constraints.py --upgrade   takes the newest versions

uv resolves all extras together, so that every package has one version in all files. constraints.txt holds
what tidelog and `make test` need. Each other file begins with `-r constraints.txt` and holds only what its
extra adds.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
BASE_EXTRA: Final = "test"
FURTHER_EXTRAS: Final = ("check", "lab", "docs", "pipeline")
OPTIONS: Final = (
    *("--universal", "--python-version", "3.11", "--generate-hashes"),
    *("--no-header", "--no-annotate", "--quiet"),
)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--upgrade", action="store_true", help="take the newest versions")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        everything = Path(name) / "everything.txt"
        if not arguments.upgrade:  # uv prefers the versions that it finds in its output file
            files = [constraints_file(extra) for extra in (BASE_EXTRA, *FURTHER_EXTRAS)]
            everything.write_text("".join(pins_of(file) for file in files if file.exists()))
        compile_extras((BASE_EXTRA, *FURTHER_EXTRAS), everything)
        base = compile_extras((BASE_EXTRA,), Path(name) / "base.txt", everything)
        constraints_file(BASE_EXTRA).write_text("".join(base))
        for extra in FURTHER_EXTRAS:
            blocks = compile_extras((extra,), Path(name) / f"{extra}.txt", everything)
            added = [block for block in blocks if block not in base]
            constraints_file(extra).write_text(
                f"# What the extra `{extra}` needs in addition to constraints.txt.\n"
                f"-r constraints.txt\n{''.join(added)}"
            )
    return 0


def constraints_file(extra: str) -> Path:
    return ROOT / ("constraints.txt" if extra == BASE_EXTRA else f"constraints-{extra}.txt")


def pins_of(file: Path) -> str:
    """Returns the file's text without comments and references to other files."""
    return "".join(
        line for line in file.read_text().splitlines(keepends=True) if not line.startswith(("#", "-r"))
    )


def compile_extras(extras: tuple[str, ...], output: Path, versions: Path | None = None) -> list[str]:
    """Returns one block of text for each pin of these extras, in order. Exits if uv cannot resolve them."""
    command = ["uv", "pip", "compile", *OPTIONS, "pyproject.toml", "-o", str(output)]
    command += [option for extra in extras for option in ("--extra", extra)]
    command += ["-c", str(versions)] if versions else []
    try:
        subprocess.run(command, cwd=ROOT, check=True)
    except FileNotFoundError:
        sys.exit("uv is not installed: pip install uv")
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    return [block for block in re.split(r"^(?=\S)", output.read_text(), flags=re.MULTILINE) if block]


if __name__ == "__main__":
    sys.exit(main())
