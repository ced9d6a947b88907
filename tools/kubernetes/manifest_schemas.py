"""JSON schemas of Kubernetes' objects and of the custom objects that the chart renders.

They come from the projects' Go modules, pinned by version and checksum; this repository contains no copies.
Closed objects are made strict, so that a field that Kubernetes would drop is an error here.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml
from jsonschema import Draft7Validator
from jsonschema.exceptions import ValidationError, best_match

DOWNLOAD_TIMEOUT_S: Final = 300
GO_PLACES: Final = ("/usr/local/go/bin", "/usr/lib/go/bin")

Schema = dict[str, Any]


class GoModule(NamedTuple):
    path: str
    version: str
    # the checksum in go.sum
    sum: str


KUBERNETES: Final = GoModule(
    "k8s.io/kubernetes", "v1.34.4", "h1:Yy6R4QB8C9kJPp25GFqEvX5XQwY5qzKeqD0Xx6oAcmk="
)
PROMETHEUS_OPERATOR: Final = GoModule(
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
)
CERT_MANAGER: Final = GoModule(
    "github.com/cert-manager/cert-manager", "v1.19.1", "h1:Txh8L/nLWTDcb7ZnXuXbTe15BxQnLbLirXmbNk0fGgY="
)
# The places of CustomResourceDefinitions, by group.
CUSTOM_GROUPS: Final = {
    "monitoring.coreos.com": (PROMETHEUS_OPERATOR, "example/prometheus-operator-crd"),
    "cert-manager.io": (CERT_MANAGER, "deploy/crds"),
}


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """A loader that reads a bare `=` as text, because its meaning in YAML 1.1 is not used in practice."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda loader, node: loader.construct_scalar(node))


class SchemasMissingError(Exception):
    """The schemas are not available. The message gives the reason and the next step."""


class UnknownKindError(Exception):
    """There is no schema for this kind of object."""


def faults_of(manifest: dict[str, Any]) -> list[str]:
    """Returns the problems of an object, one line each. Raises UnknownKindError and SchemasMissingError."""
    validator = Draft7Validator(schema_of(manifest.get("apiVersion", ""), manifest.get("kind", "")))
    return [_sentence(error) for error in validator.iter_errors(manifest)]


def _sentence(error: ValidationError) -> str:
    inner = best_match(error.context) if error.context else error
    where = ".".join(str(part) for part in error.absolute_path) or "(the object)"
    return f"{where}: {(inner or error).message}"[:400]


@functools.cache
def schema_of(api_version: str, kind: str) -> Schema:
    """Raises UnknownKindError and SchemasMissingError."""
    group, _, version = api_version.rpartition("/")
    if group in CUSTOM_GROUPS:
        return _custom_schema(group, version, kind)
    return _builtin_schema(group, version, kind)


def _builtin_schema(group: str, version: str, kind: str) -> Schema:
    document = _openapi_document(group, version)
    for name, schema in document["components"]["schemas"].items():
        for names in schema.get("x-kubernetes-group-version-kind", ()):
            if names == {"group": group, "version": version, "kind": kind}:
                return {**document, "$ref": f"#/components/schemas/{name}"}
    raise UnknownKindError(f"{group or 'core'}/{version} has no {kind}")


@functools.cache
def _openapi_document(group: str, version: str) -> Schema:
    name = f"apis__{group}__{version}_openapi.json" if group else f"api__{version}_openapi.json"
    path = module_directory(KUBERNETES) / "api" / "openapi-spec" / "v3" / name
    if not path.exists():
        raise UnknownKindError(f"Kubernetes {KUBERNETES.version} has no {group or 'core'}/{version}")
    document: Schema = json.loads(path.read_text("utf-8"))
    schemas = document["components"]["schemas"]
    return {"components": {"schemas": {name: made_strict(schema) for name, schema in schemas.items()}}}


def _custom_schema(group: str, version: str, kind: str) -> Schema:
    module, folder = CUSTOM_GROUPS[group]
    for path in sorted((module_directory(module) / folder).glob(f"{group}_*.yaml")):
        for document in yaml.load_all(path.read_text("utf-8"), _Loader):
            if document["spec"]["names"]["kind"] != kind:
                continue
            for served in document["spec"]["versions"]:
                if served["name"] == version:
                    schema: Schema = served["schema"]["openAPIV3Schema"]
                    # The fields that every object has. The API server checks them separately from the schema.
                    schema["properties"]["metadata"] = {"type": "object"}
                    return made_strict(schema)
    raise UnknownKindError(f"{module.path} {module.version} has no {kind} of {group}/{version}")


def made_strict(schema: Any) -> Any:
    """Returns a copy in which objects accept only the fields that they name, unless they are maps or state
    otherwise.
    """
    if isinstance(schema, list):
        return [made_strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    copy = {key: made_strict(value) for key, value in schema.items()}
    is_open = copy.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in copy
    if isinstance(copy.get("properties"), dict) and copy.get("type") == "object" and not is_open:
        copy["additionalProperties"] = False
    if copy.pop("x-kubernetes-int-or-string", False):
        copy.pop("type", None)
        copy["anyOf"] = [{"type": "integer"}, {"type": "string"}]
    if copy.get("nullable") is True and isinstance(copy.get("type"), str):
        copy["type"] = [copy["type"], "null"]
    return copy


@functools.cache
def module_directory(module: GoModule) -> Path:
    """Returns the directory of the unpacked module, which Go downloads if necessary. Raises
    SchemasMissingError.
    """
    go = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", ""), *GO_PLACES]))
    if go is None:
        raise SchemasMissingError(
            "Go is not installed and cannot download the schemas (apt-get install golang)"
        )
    command = [go, "mod", "download", "-json", f"{module.path}@{module.version}"]
    with tempfile.TemporaryDirectory() as outside_any_module:
        try:
            done = subprocess.run(
                command,
                cwd=outside_any_module,
                capture_output=True,
                text=True,
                timeout=DOWNLOAD_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SchemasMissingError(f"{module.path} was not downloaded in time") from error
    try:
        answer = json.loads(done.stdout)
    except ValueError as error:
        raise SchemasMissingError(f"{module.path}: {done.stderr.strip() or done.stdout}") from error
    if "Dir" not in answer:
        raise SchemasMissingError(f"{module.path} cannot be downloaded: {answer.get('Error', done.stderr)}")
    if answer.get("Sum") != module.sum:
        raise SchemasMissingError(
            f"{module.path} {module.version} has another checksum than the pinned one: {answer['Sum']}"
        )
    return Path(answer["Dir"])
