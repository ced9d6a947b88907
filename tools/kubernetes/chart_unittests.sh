#!/bin/bash
# Runs the suites in charts/tidelog/tests with helm-unittest. If it is not installed, prints a message and succeeds; with
# REQUIRE_ALL=1 it fails.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
eval "$(./install_tools.sh env)"
if ! command -v helm-unittest >/dev/null; then
  echo "the chart's unit tests did not run: helm-unittest is not installed ('make kube-tools')" >&2
  [ -z "${REQUIRE_ALL:-}" ]
  exit
fi
if ! said=$(helm-unittest ../../charts/tidelog 2>&1); then
  printf '%s\n' "$said" >&2
  exit 1
fi
printf 'chart: %s\n' "$(grep '^Tests:' <<<"$said" | tr -s ' ' | cut -d' ' -f2-)"
