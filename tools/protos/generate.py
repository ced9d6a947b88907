"""Writes the Python stubs of protos/ (`make protos`).

    generate.py           writes the modules
    generate.py --check   exits with 1 if the modules differ from those that it would write

Each `x.proto` gives `x_pb2.py` (messages), `x_pb2_grpc.py` (stubs and servicers) and their types as `.pyi`.
protoc names Python modules after the directories of the .proto files. This tool puts them into tidelog's
packages (PACKAGES) and rewrites the imports among them. It leaves out the parts that tidelog never calls:
gRPC's experimental functions, and the servicers of APIs of which tidelog is only a client (CLIENT_ONLY).
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from pathlib import Path
from typing import Final

import grpc_tools
from grpc_tools import protoc

ROOT: Final = Path(__file__).resolve().parents[2]
PROTOS: Final = ROOT / "protos"
SOURCE_ROOT: Final = "services"
# Maps a directory under protos/ to the Python package of its stubs.
PACKAGES: Final = {
    "etcd": "tidelog.metadata.etcd.generated",
    "tidelog/otlp/v1": "tidelog.metrics.generated",
    "tidelog/rpc/v1": "tidelog.rpc.generated",
}
CLIENT_ONLY: Final = frozenset({"etcd"})
EXPERIMENTAL_CLASS: Final = re.compile(
    r"^ # This class is part of an EXPERIMENTAL API\..*?\nclass .*?(?=^\S|\Z)", re.M | re.S
)
SERVICER: Final = re.compile(r"^(?:class \w*Servicer|def add_\w+_to_server).*?(?=^\S|\Z)", re.M | re.S)
PLUGINS: Final = ("protoc-gen-mypy", "protoc-gen-mypy_grpc")


class GenerationError(Exception):
    """protoc failed. It has already printed the reason."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="only compare")
    arguments = parser.parse_args()
    try:
        files = make_files()
    except GenerationError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return check(files) if arguments.check else write(files)


def make_files() -> dict[Path, str]:
    """Returns the paths and texts of all generated modules."""
    files: dict[Path, str] = {}
    for folder in PACKAGES:
        sources = sorted((PROTOS / folder).glob("*.proto"))
        if not sources:
            continue
        with tempfile.TemporaryDirectory() as temporary:
            run_protoc(sources, Path(temporary))
            for made in sorted((Path(temporary) / folder).iterdir()):
                if "_pb2_grpc." in made.name and not has_services(made, sources):
                    continue
                text = without_unused_parts(with_own_imports(made.read_text()), folder)
                files[package_directory(folder) / made.name] = text
        files[package_directory(folder) / "__init__.py"] = (
            f'"""Stubs of protos/{folder}, made by tools/protos/generate.py; not edited by hand."""\n'
        )
    return files


def has_services(made: Path, sources: list[Path]) -> bool:
    """Returns true if the .proto has services. Without services, protoc writes an empty stubs module."""
    stem = made.name.partition("_pb2_grpc.")[0]
    return any(re.search(r"^service ", source.read_text(), re.M) for source in sources if source.stem == stem)


def run_protoc(sources: list[Path], target: Path) -> None:
    well_known = Path(grpc_tools.__file__).parent / "_proto"
    # Without `quiet`, the plugins print every file that they write.
    plugins = [f"--plugin={name}={Path(sys.executable).with_name(name)}" for name in PLUGINS]
    outputs = [f"--{kind}_out={target}" for kind in ("python", "grpc_python")]
    outputs += [f"--{kind}_out=quiet:{target}" for kind in ("mypy", "mypy_grpc")]
    names = [source.relative_to(PROTOS).as_posix() for source in sources]
    # protoc runs in this process, because grpc_tools contains it as a library.
    status = protoc.main(["protoc", f"-I{PROTOS}", f"-I{well_known}", *plugins, *outputs, *names])
    if status != 0:
        raise GenerationError(f"protoc ended with {status} for {', '.join(names)}")


def with_own_imports(text: str) -> str:
    """Replaces `etcd.kv_pb2` by `tidelog.metadata.etcd.generated.kv_pb2`, in imports and in type stubs."""
    for folder, package in PACKAGES.items():
        module = re.escape(folder.replace("/", "."))
        # protoc writes `from a.b import c_pb2 as alias` and `import a.b.c_pb2`.
        text = re.sub(rf"^from {module} import (\w+_pb2)", rf"from {package} import \1", text, flags=re.M)
        text = re.sub(rf"(?<![\w.]){module}\.(\w+_pb2)\b", rf"{package}.\1", text)
    return text


def without_unused_parts(text: str, folder: str) -> str:
    """Removes the experimental functions, and the servicers if tidelog is only a client of the API."""
    text = EXPERIMENTAL_CLASS.sub("", text)
    if folder in CLIENT_ONLY:
        text = SERVICER.sub("", text)
    return text.rstrip("\n") + "\n"


def package_directory(folder: str) -> Path:
    return ROOT / SOURCE_ROOT / PACKAGES[folder].replace(".", "/")


def existing() -> set[Path]:
    """Returns the files that exist now. This tool owns all files in these directories."""
    directories = [package_directory(folder) for folder in PACKAGES]
    return {path for directory in directories for path in directory.glob("*.py*") if path.is_file()}


def write(files: dict[Path, str]) -> int:
    for path in existing() - set(files):
        path.unlink()
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    sys.stdout.write(f"{len(files)} modules from protos/\n")
    return 0


def check(files: dict[Path, str]) -> int:
    present = existing()
    wrong = sorted(
        path for path in present | set(files) if path not in present or path.read_text() != files.get(path)
    )
    for path in wrong:
        sys.stderr.write(f"{path.relative_to(ROOT)} is not what `make protos` writes\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
