"""Wheels with the request path compiled by mypyc, where HATCH_BUILD_HOOK_ENABLE_CUSTOM=true asks for it.

Without it a wheel is plain Python; an editable install always is. The compiled modules are those that
pyproject.toml lists, they lie beside their sources in the wheel, and Python takes them first. Why, what it
costs and which modules: docs/adr/0020.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GROUP = "tidelog"
"""All modules lie in one library, so that they call each other as C does."""
MYPY_OPTIONS = (
    "--ignore-missing-imports",
    "--follow-imports=silent",
    "--no-warn-unused-ignores",
    "--allow-subclassing-any",
)
"""Types are checked by `make check`; a build has no libraries but mypy."""


class CompiledModules(BuildHookInterface[Any]):
    """Hatch's hook `custom`; `modules` of its table are dotted names."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        # Held until the wheel is written: it goes with this object, also when a build fails.
        self._holds_libraries = tempfile.TemporaryDirectory(prefix="tidelog-mypyc-")
        work_dir = Path(self._holds_libraries.name)
        sources = [self._source_of(module) for module in self.config["modules"]]
        libraries = _compiled(sources, work_dir)
        build_data["force_include"].update({str(work_dir / name): name for name in libraries})
        build_data.update(pure_python=False, infer_tag=True)

    def _source_of(self, module: str) -> str:
        """Its file, from the project's root. Raises ValueError for one that isn't there."""
        name = module.replace(".", "/") + ".py"
        for package in self.build_config.target_config["packages"]:
            source = Path(package).parent / name
            if (Path(self.root) / source).is_file():
                return str(source)
        raise ValueError(f"pyproject.toml wants {module} compiled, and no source root has it")


def _compiled(sources: list[str], work_dir: Path) -> list[str]:
    """Compile `sources` into `work_dir`; the libraries' names there. Ends with mypyc's or the C
    compiler's words where they refuse.
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
