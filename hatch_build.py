"""Completes wheels: states the commit, and compiles the request path with mypyc, if
HATCH_BUILD_HOOK_ENABLE_CUSTOM=true requests it.

Otherwise a wheel is plain Python, and so is every editable install. pyproject.toml lists the compiled
modules. In the wheel, they are next to their sources, and Python prefers them. docs/adr/0020 gives reasons,
costs and limits.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "tidelog"
"""All modules are in one library, so that they call each other as C functions."""
MYPY_OPTIONS = (
    "--ignore-missing-imports",
    "--follow-imports=silent",
    "--no-warn-unused-ignores",
    "--allow-subclassing-any",
)
"""`make check` checks the types. A build has no libraries except mypy."""


COMPILE_VARIABLE = "HATCH_BUILD_HOOK_ENABLE_CUSTOM"
COMMIT_VARIABLE = "TIDELOG_COMMIT"
"""Names the commit where the build has no git, such as in an image."""
COMMIT_FILE = "tidelog/process/commit.txt"
"""Where `tidelog.process.build` looks for the commit."""


class WheelContents(BuildHookInterface[Any]):
    """Hatch's hook `custom`. `modules` of its table are dotted names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        # This object holds the directory until the wheel is written, and removes it even if a build fails.
        self._holds_files = tempfile.TemporaryDirectory(prefix="tidelog-wheel-")
        work_dir = Path(self._holds_files.name)
        commit = os.environ.get(COMMIT_VARIABLE) or _commit_of(Path(self.root))
        if commit:
            (work_dir / "commit.txt").write_text(commit + "\n")
            build_data["force_include"][str(work_dir / "commit.txt")] = COMMIT_FILE
        if os.environ.get(COMPILE_VARIABLE, "").lower() not in ("true", "1"):
            return
        sources = [self._source_of(module) for module in self.config["modules"]]
        libraries = _compiled(sources, work_dir)
        build_data["force_include"].update({str(work_dir / name): name for name in libraries})
        build_data.update(pure_python=False, infer_tag=True)

    def _source_of(self, module: str) -> str:
        """Returns the module's file, relative to the project's root. Raises ValueError if it
        does not exist.
        """
        name = module.replace(".", "/") + ".py"
        for package in self.build_config.target_config["packages"]:
            source = Path(package).parent / name
            if (Path(self.root) / source).is_file():
                return str(source)
        raise ValueError(f"pyproject.toml lists {module} as compiled, but no source root contains it")


def _commit_of(root: Path) -> str:
    """Returns the commit of the checkout, with `-dirty` if files differ from it; empty without git."""
    if not (root / ".git").exists():
        return ""
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""


def _compiled(sources: list[str], work_dir: Path) -> list[str]:
    """Compiles `sources` into `work_dir` and returns the names of the libraries there. Exits with the
    messages of mypyc or the C compiler if they fail.
    """
    from mypyc.build import mypycify
    from setuptools import Distribution

    extensions = mypycify(
        [*MYPY_OPTIONS, *sources],
        opt_level="2",
        debug_level="0",
        group_name=GROUP,
        target_dir=str(work_dir / "c"),
    )
    command = Distribution({"name": GROUP, "ext_modules": extensions}).get_command_obj("build_ext")
    command.build_lib, command.build_temp = str(work_dir), str(work_dir / "o")
    command.ensure_finalized()
    command.run()
    return [str(library.relative_to(work_dir)) for library in work_dir.rglob("*.so")]
