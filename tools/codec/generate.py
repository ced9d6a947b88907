"""Writes services/tidelog/wire/messages from Kafka's message definitions (`make codec`).

    generate.py           writes the modules
    generate.py --check   compares them with what it would write; exit 1 if they differ

The definitions are in jars of Apache Kafka on Maven Central, pinned by SHA-256 (definitions.py). Without them
(offline, no Maven) `--check` says so and passes, unless REQUIRE_ALL=1. One module for each API with its
request and response, one for each kind of coordinator record with its key and value, and `apis.py` with the
table of APIs. Only names, types, versions, tags and defaults are taken.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

from definitions import KAFKA_VERSION, DefinitionsUnavailableError, load_definitions
from python_source import LAST_VERSION, MessageSource, shape, snake, valid_versions, versions

ROOT = Path(__file__).resolve().parents[2]
TARGET = ROOT / "services/tidelog/wire/messages"
MARK = f"Made by tools/codec/generate.py from Apache Kafka {KAFKA_VERSION}'s definitions; not edited by hand."


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    try:
        files = make_files(load_definitions())
    except DefinitionsUnavailableError as error:
        must = not arguments.check or os.environ.get("REQUIRE_ALL") == "1"
        sys.stderr.write(f"generated codec {'not made' if must else 'not checked (skipped)'}: {error}\n")
        return 1 if must else 0
    return check(files) if arguments.check else write(files)


def make_files(definitions: list[dict[str, Any]]) -> dict[str, str]:
    """Paths below TARGET and their texts."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for definition in definitions:
        groups.setdefault(module_name(definition), []).append(definition)
    files = {"__init__.py": f'"""One module for each API. {MARK}"""\n'}
    files["records/__init__.py"] = f'"""Records of internal topics and of consumer protocols. {MARK}"""\n'
    for name, members in sorted(groups.items()):
        files[f"{name}.py"] = module_text(members)
    files["apis.py"] = apis_text(definitions)
    return files


def module_name(definition: dict[str, Any]) -> str:
    name: str = definition["name"]
    if definition["type"] in ("request", "response"):
        return snake(name.removesuffix("Request").removesuffix("Response"))
    if definition["type"].startswith("coordinator-"):
        name = name.removesuffix("Key").removesuffix("Value")
    return f"records/{snake(name)}"


def module_text(members: list[dict[str, Any]]) -> str:
    members = sorted(members, key=lambda d: d["name"])  # Request before Response, Key before Value
    unstable = any(d.get("latestVersionUnstable") for d in members)
    sources = [MessageSource(d, unstable) for d in members]
    body: list[str] = []
    written: dict[str, Any] = {}
    for source in sources:
        renamed: dict[str, str] = {}
        for name, fields in source.structs.items():
            clashing = [
                other
                for other in sources
                if name in other.structs and shape(other.structs[name]) != shape(fields)
            ]
            if clashing:
                kind = source.definition["type"].removeprefix("coordinator-").capitalize()
                renamed[name] = kind + name
            if name in written and not clashing:
                continue
            written[name] = fields
            body += ["", "", *source.write_struct(name, renamed)]
        body += ["", "", *source.write_message(renamed)]
    text = "\n" + "\n".join(body)
    titles = " and ".join(d["name"] for d in members)
    lines = [f'"""{titles}.', "", MARK, '"""', "", "from __future__ import annotations", ""]
    lines.append(
        "from dataclasses import dataclass, field"
        if "field(" in text
        else "from dataclasses import dataclass"
    )
    lines.append("from typing import ClassVar")
    if "UUID" in text:
        lines.append("from uuid import UUID")
    names = ["NOT_FLEXIBLE", "ZERO_UUID", "Buffer", "F", "Fields", "Records"]
    used = [
        n for n in names if n in ("F", "Fields") or n + " " in text or n + "\n" in text or n + "]" in text
    ]
    if "F(" not in text:
        used.remove("F")
    lines += ["", f"from tidelog.wire.schema import {', '.join(used)}"]
    return "\n".join(lines) + text + "\n"


def apis_text(definitions: list[dict[str, Any]]) -> str:
    requests = sorted((d for d in definitions if d["type"] == "request"), key=lambda d: d["apiKey"])
    lines = [
        f'"""The table of APIs. {MARK}"""',
        "",
        "from __future__ import annotations",
        "",
        "from enum import IntEnum",
        "",
        "",
    ]
    lines += [
        "class ApiKey(IntEnum):",
        '    """APIs that a broker serves to clients and other brokers."""',
        "",
    ]
    lines += [f"    {api_name(d).upper()} = {d['apiKey']}" for d in requests]
    lines += [
        "",
        "    @property",
        "    def name_in_kafka(self) -> str:",
        '        """`Produce`, `ApiVersions`, ...: the name in metrics."""',
    ]
    lines += ["        return API_ROWS[self][0]", "", ""]
    lines += ["API_ROWS: dict[int, tuple[str, int, int, int, str]] = {"]
    lines.append("    # api key: name, first version, last version, flexible from, module")
    for d in requests:
        first, last = valid_versions(d)
        flexible = versions(d["flexibleVersions"])
        flexible_from = LAST_VERSION + 1 if flexible[1] < 0 else flexible[0]
        name = d["name"].removesuffix("Request")
        lines.append(f'    {d["apiKey"]}: ("{name}", {first}, {last}, {flexible_from}, "{module_name(d)}"),')
    return "\n".join([*lines, "}", ""])


def api_name(definition: dict[str, Any]) -> str:
    name: str = definition["name"]
    return snake(name.removesuffix("Request"))


def write(files: dict[str, str]) -> int:
    for path in set(existing()) - set(files):
        (TARGET / path).unlink()
    for path, text in files.items():
        (TARGET / path).parent.mkdir(parents=True, exist_ok=True)
        (TARGET / path).write_text(text)
    sys.stdout.write(f"{len(files)} modules in {TARGET.relative_to(ROOT)}\n")
    return 0


def check(files: dict[str, str]) -> int:
    wrong = sorted(set(existing()) ^ set(files))
    wrong += sorted(
        path for path in set(existing()) & set(files) if (TARGET / path).read_text() != files[path]
    )
    for path in wrong:
        sys.stderr.write(f"{TARGET.relative_to(ROOT) / path} is not what `make codec` writes\n")
    return 1 if wrong else 0


def existing() -> list[str]:
    return [path.relative_to(TARGET).as_posix() for path in TARGET.rglob("*.py")]


if __name__ == "__main__":
    sys.exit(main())
