"""The chart, `make image` and compose.yaml name one image, with the version of the package."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from tidelog import __version__
from tidelog.settings.broker_settings import BrokerSettings

ROOT = Path(__file__).parents[2]
IMAGE = f"localhost/tidelog:{__version__}"


def read_yaml(path: str) -> dict:
    return yaml.safe_load((ROOT / path).read_text())


def test_make_builds_the_charts_default_image() -> None:
    values, chart = read_yaml("charts/tidelog/values.yaml"), read_yaml("charts/tidelog/Chart.yaml")
    assert chart["version"] == chart["appVersion"] == __version__
    assert not values["image"]["tag"]  # the chart's appVersion
    assert f"{values['image']['repository']}:{chart['appVersion']}" == IMAGE
    made = subprocess.run(
        ["make", "-n", "image", "ENGINE=engine"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert f"-t {IMAGE} ." in made


def test_the_chart_lists_the_images_that_its_values_name() -> None:
    values, chart = read_yaml("charts/tidelog/values.yaml"), read_yaml("charts/tidelog/Chart.yaml")
    listed = {
        each["name"]: each["image"] for each in yaml.safe_load(chart["annotations"]["artifacthub.io/images"])
    }
    images = {
        "tidelog": values["image"],
        "etcd": values["etcd"]["image"],
        "tidelog-spark": values["pipeline"]["image"],
    }
    assert listed == {
        name: "/".join(filter(None, (image["registry"], image["repository"])))
        + f":{image['tag'] or chart['appVersion']}"
        for name, image in images.items()
    }


def test_documents_name_it() -> None:
    for path in (
        "docs/guides/kubernetes.md",
        "docs/tutorials/platform-engineer.md",
        "deploy/helm/kind.yaml",
        "README.md",
    ):
        assert IMAGE in (ROOT / path).read_text(), path


def test_compose_starts_it_with_settings_that_are_valid() -> None:
    service = read_yaml("compose.yaml")["services"]["tidelog"]
    assert service["image"] == IMAGE
    command, *options = service["command"]
    assert command == "dev"
    assignments = [option.removeprefix("--set=").partition("=") for option in options]
    plan = BrokerSettings.parse({name: value for name, _, value in assignments}).listener_plan()
    assert [(each.host, each.port) for each in plan.advertised] == [("127.0.0.1", 9092), ("tidelog", 19092)]
    assert service["ports"] == ["127.0.0.1:9092:9092"]
