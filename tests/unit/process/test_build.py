"""The facts that a build states about itself, and the packages of its extras."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from tidelog.process import build

EXTRAS = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"][
    "optional-dependencies"
]


@pytest.mark.parametrize("extra", ["arrow", "console", "kubernetes", "pipeline", "top", "tracing"])
def test_the_packages_of_an_extra_can_be_installed_by_their_names(extra: str) -> None:
    """tidelog is on no package index, so that `pip install 'tidelog[top]'` finds nothing."""
    command = build.install_command(extra)
    packages = command.removeprefix("pip install ").split(" ")
    assert {Requirement(package.strip("'")) for package in packages} == set(map(Requirement, EXTRAS[extra]))


def test_a_checkout_without_an_installation_is_installed_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def requires(name: str) -> list[str]:
        raise build.PackageNotFoundError(name)

    monkeypatch.setattr(build, "requires", requires)
    assert build.install_command("top") == "pip install '.[top]'"
