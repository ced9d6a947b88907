#!/bin/bash
# Installs packages, pinned with their hashes, into the virtual environment .venv and shows the progress.
#
#   install.sh test    creates .venv from constraints.txt: what tidelog and `make test` need
#   install.sh EXTRA   adds what the extra EXTRA needs, from constraints-EXTRA.txt
#
# PYTHON names the interpreter that creates .venv. Does nothing if .venv is up to date.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
EXTRA=$1
VENV=.venv
PYTHON=${PYTHON:-python3}
STAMP=$VENV/.extra-$EXTRA
LOG=$VENV/install-$EXTRA.log
CONSTRAINTS=constraints-$EXTRA.txt
[ "$EXTRA" != test ] || CONSTRAINTS=constraints.txt
LINES_WITHOUT_TERMINAL=10 # without a terminal, one line for each ten packages

fail() { echo "$*" >&2; exit 1; }

check_python() {
  command -v "$PYTHON" >/dev/null || fail "tidelog needs Python 3.11 or newer: apt-get install python3 python3-venv"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    fail "tidelog needs Python 3.11 or newer, but $PYTHON is $("$PYTHON" -V 2>&1). Name another one: make setup PYTHON=python3.12"
  "$PYTHON" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "tidelog needs Python's venv module: apt-get install python3-venv"
}

# Reads pip's output and writes one progress line, which names the package that pip is fetching.
progress() {
  local line package count=0 step='' end='\n'
  if [ -t 1 ]; then end='\033[K\r'; fi
  while IFS= read -r line; do
    case $line in
      'Collecting '*)
        count=$((count + 1))
        package=${line#Collecting } package=${package%% *}
        step="  $count of $TOTAL packages: $package" ;;
      'Building wheel'*) step="  building ${line#Building wheel for }" ;;
      'Installing collected packages'*) step="  unpacking $count packages" ;;
      *) continue ;;
    esac
    if [ -t 1 ] || [ $((count % LINES_WITHOUT_TERMINAL)) = 0 ] || [ "${step#  unpacking}" != "$step" ]; then
      printf "%s$end" "$step"
    fi
  done
}

install() {
  "$VENV/bin/python" -m pip --disable-pip-version-check install --progress-bar off --require-hashes \
    --no-build-isolation -r "$CONSTRAINTS" 2>&1 | tee "$LOG" | progress || {
    [ ! -t 1 ] || echo
    tail -n 20 "$LOG" >&2
    fail "pip could not install $CONSTRAINTS; the lines above and $LOG say why. Then run 'make $TARGET' again."
  }
}

# Under a lock: `make run` and `make demo` in two terminals of a fresh clone set up once.
exec 9>.venv.lock
! command -v flock >/dev/null || flock 9
[ ! "$STAMP" -nt "$CONSTRAINTS" ] || exit 0
began=$SECONDS
TOTAL=$(grep -cE '^[A-Za-z0-9._-]+==' "$CONSTRAINTS")
if [ "$EXTRA" = test ]; then
  TARGET=setup
  check_python
  echo "Creating $VENV with $("$PYTHON" -V)"
  "$PYTHON" -m venv --clear "$VENV"
  echo "Installing about $TOTAL packages from $CONSTRAINTS"
else
  TARGET=$EXTRA-setup
  echo "Installing about $TOTAL more packages from $CONSTRAINTS for the extra '$EXTRA'"
fi
install
touch "$STAMP"
printf '%s  done after %s s\n' "$([ ! -t 1 ] || printf '\033[K')" "$((SECONDS - began))"
