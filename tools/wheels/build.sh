#!/bin/bash
# Builds a compiled wheel for each supported Python of this machine into dist/, and starts a broker from each.
#
#   build.sh [PYTHON...]      PYTHON is a version such as 3.12; without one, all supported versions that are found
#
# A wheel takes three minutes on an idle machine. It runs on Linux with the glibc that its name states (manylinux).
# For other machines, cibuildwheel builds wheels with the settings in pyproject.toml.
set -euo pipefail
cd "$(dirname "$0")/../.."
SUPPORTED=(3.11 3.12 3.13)
WORK=build/wheels
export PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONDONTWRITEBYTECODE=1
unset PYTHONPATH

command -v gcc >/dev/null || { echo "building compiled wheels needs gcc: apt-get install gcc libc6-dev" >&2; exit 1; }

# Prints the interpreter of a version that has its headers: one on PATH, else one of pyenv.
interpreter() {
  local candidate
  for candidate in "$(command -v "python$1" || true)" "$HOME"/.pyenv/versions/"$1".*/bin/"python$1"; do
    [ -x "$candidate" ] || continue
    "$candidate" -c 'import sys, sysconfig, ensurepip, venv
open(sysconfig.get_path("include") + "/Python.h").close()
sys.exit("%d.%d" % sys.version_info[:2] != sys.argv[1])' "$1" 2>/dev/null && { echo "$candidate"; return; }
  done
  return 1
}

# Starts a broker from the wheel in an environment that contains nothing else.
start_broker() {
  local python=$1 wheel=$2 env=$WORK/try-$3
  rm -rf "$env"; "$python" -m venv "$env"
  "$env/bin/pip" install -q "$wheel"
  "$env/bin/tidelog" --version | grep -q ', compiled$' || { echo "$wheel is not compiled" >&2; return 1; }
  "$env/bin/python" -c 'from tidelog.testing import Cluster
with Cluster() as cluster:
    cluster.produce("flights", "EWR-IAH")
    assert [record.value for record in cluster.records("flights")] == [b"EWR-IAH"]'
  rm -rf "$env"
}

versions=("$@"); [ ${#versions[@]} -gt 0 ] || versions=("${SUPPORTED[@]}")
mkdir -p "$WORK" dist
built=0
for version in "${versions[@]}"; do
  if ! python=$(interpreter "$version"); then
    echo "Python $version with its headers was not found; no wheel for it"
    [ $# = 0 ] || exit 1
    continue
  fi
  echo "Python $version ($python): compiling, which takes three minutes ..."
  env=$WORK/env-$version
  [ -x "$env/bin/python" ] || "$python" -m venv "$env"
  "$env/bin/pip" install -q --require-hashes --no-deps --only-binary :all: \
    -r deploy/images/requirements-build.txt -r tools/wheels/requirements.txt
  raw=$WORK/raw-$version; rm -rf "$raw"
  HATCH_BUILD_HOOK_ENABLE_CUSTOM=true "$env/bin/python" -m hatchling build -t wheel -d "$raw" \
    >"$WORK/$version.log" 2>&1 || { tail -n 30 "$WORK/$version.log" >&2; exit 1; }
  rm -rf "$raw.named"
  PATH="$PWD/$env/bin:$PATH" "$env/bin/python" -m auditwheel repair -w "$raw.named" "$raw"/*.whl \
    >>"$WORK/$version.log" 2>&1 || { tail -n 30 "$WORK/$version.log" >&2; exit 1; }
  wheel=$(echo "$raw.named"/*.whl)
  start_broker "$python" "$wheel" "$version"
  rm -f dist/tidelog-*-cp"${version/./}"-*.whl
  mv "$wheel" dist/
  echo "dist/$(basename "$wheel"): $(($(stat -c %s "dist/$(basename "$wheel")") / 1024)) KiB"
  built=$((built + 1))
done
[ "$built" -gt 0 ] || { echo "no wheel was built" >&2; exit 1; }
