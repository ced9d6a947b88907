#!/bin/bash
# Installs the tools that `make check` and `make e2e` need for the chart: helm, helm-unittest, promtool.
#
#   install_tools.sh          installs missing tools (Go modules of go/go.mod, pinned with checksums; promtool by apt)
#   install_tools.sh env      prints the export that a shell needs (PATH)
#   install_tools.sh missing  names missing tools; exits with 1 if there are any
#
# The Go tools need Go 1.24 or newer, promtool needs root.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"
TOOLS=${TIDELOG_TOOLS:-$HOME/.cache/tidelog/tools}
K8S_CACHE=${K8S_CACHE:-$HOME/.cache/k8s-lab}
export PATH=$TOOLS/bin:$K8S_CACHE/bin:$PATH:/usr/local/go/bin
declare -A PACKAGE=(
  [helm]=helm.sh/helm/v3/cmd/helm
  [helm-unittest]=github.com/helm-unittest/helm-unittest/cmd/helm-unittest
)

# `go build` does not set helm's version and the version of Kubernetes for which helm renders without a cluster.
CHARTUTIL=helm.sh/helm/v3/pkg/chartutil LINT=helm.sh/helm/v3/pkg/lint/rules
LDFLAGS="-s -w -X helm.sh/helm/v3/internal/version.version=v3.19.5"
for package in $CHARTUTIL $LINT; do LDFLAGS+=" -X $package.k8sVersionMajor=1 -X $package.k8sVersionMinor=34"; done

stamp() { cat go/go.mod go/go.sum "$(basename "$0")" | sha256sum; }
missing() {
  local tool
  for tool in helm helm-unittest; do
    [ "$(cat "$TOOLS/$tool.stamp" 2>/dev/null)" = "$(stamp)" ] && [ -x "$TOOLS/bin/$tool" ] || echo $tool
  done
  command -v promtool >/dev/null || echo promtool
}

install() {
  local tool sudo=()
  mkdir -p "$TOOLS/bin"
  for tool in $(missing); do
    echo "installing $tool" >&2
    if [ "$tool" = promtool ]; then
      [ "$(id -u)" = 0 ] || sudo=(sudo -n)
      "${sudo[@]}" apt-get -o DPkg::Lock::Timeout=300 update -qq
      # Without this policy, the package would start a server.
      local policy=/usr/sbin/policy-rc.d made=
      [ -e $policy ] || { printf '#!/bin/sh\nexit 101\n' | "${sudo[@]}" tee $policy >/dev/null; "${sudo[@]}" chmod 755 $policy; made=1; }
      DEBIAN_FRONTEND=noninteractive "${sudo[@]}" apt-get -o DPkg::Lock::Timeout=300 install -y -qq --no-install-recommends prometheus >/dev/null
      [ -z "$made" ] || "${sudo[@]}" rm -f $policy
    else
      (cd go && CGO_ENABLED=0 GOFLAGS="-buildvcs=false -mod=readonly -trimpath" nice -n 5 go build \
        -ldflags "$LDFLAGS" -o "$TOOLS/bin/$tool" "${PACKAGE[$tool]}")
      stamp > "$TOOLS/$tool.stamp"
    fi
  done
}

case ${1:-install} in
  install) install ;;
  env) echo "export PATH=$TOOLS/bin:$K8S_CACHE/bin:\$PATH" ;;
  missing) found=$(missing); echo -n "${found:+$found$'\n'}"; [ -z "$found" ] ;;
  *) sed -n '2,8p' "$0"; exit 2 ;;
esac
