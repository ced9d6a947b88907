#!/bin/bash
# Builds images of the services and of etcd without a container engine or registry, and loads them into the lab
# (`make image-lab`).
#
#   lab_images.sh [TAG]          loads localhost/tidelog:TAG (default dev) and localhost/tidelog-etcd:TAG
#   lab_images.sh TAG spark      loads localhost/tidelog-spark:TAG instead, the image of the Spark jobs (1.3 GB)
#
# The image is like that of deploy/images/Containerfile, but from Debian packages: a root file system with Python and no
# shell, the packages of deploy/images/requirements.txt, and tidelog's wheel of HEAD (REVISION=..., or REVISION=worktree).
# Each is a layer, which is built again only if its inputs have changed. Needs root, the lab's cache and mmdebstrap.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/../.."
TAG=${1:-dev}
WHICH=${2:-services}
REVISION=${REVISION:-HEAD}
K8S_LAB=${K8S_LAB:-../shared/k8s-lab}
K8S_CACHE=${K8S_CACHE:-$HOME/.cache/k8s-lab}
CACHE=${TIDELOG_IMAGE_CACHE:-$HOME/.cache/tidelog/images}
PYTHON=${PYTHON:-.venv/bin/python}
SITE=usr/local/lib/python3.11/dist-packages # the path of Debian 12
ROOT_FS=$CACHE/root
SPARK_ROOT_FS=$CACHE/spark-root

say() { printf '%(%T)T %s\n' -1 "$*" >&2; }
[ "$(id -u)" = 0 ] || { echo "building an image from Debian packages needs root" >&2; exit 1; }
[ -x "$PYTHON" ] || { echo "needs $PYTHON: make setup" >&2; exit 1; }
mkdir -p "$CACHE"
exec 9>"$CACHE/.lock"; flock 9 # two runs at the same time would write the same layers
work=$(mktemp -d "$CACHE/work.XXXXXX")
trap 'rm -rf "$work"' EXIT

up_to_date() { [ -s "$CACHE/$1.tar" ] && [ "$(cat "$CACHE/$1.stamp" 2>/dev/null)" = "$2" ]; } # LAYER STAMP
made() { mv "$work/$1.tar" "$CACHE/$1.tar"; printf '%s\n' "$2" > "$CACHE/$1.stamp"; }
layer() { # LAYER DIRECTORY PATH...: the same tar each time, all owned by root
  tar --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -C "$2" -cf "$work/$1.tar" "${@:3}"
}
in_root() { chroot "$ROOT_FS" /usr/bin/python3.11 -I "$@"; }

base_layer() {
  local stamp; stamp=$(declare -f base_layer | sha256sum)
  if up_to_date base "$stamp" && [ -d "$ROOT_FS" ]; then return; fi
  command -v mmdebstrap >/dev/null || { echo "needs mmdebstrap: apt-get install mmdebstrap" >&2; exit 1; }
  say "base: Python from Debian packages"
  rm -rf "$ROOT_FS"; rm -f "$CACHE"/{packages,code}.stamp
  mmdebstrap --quiet --mode=root --variant=extract --skip=cleanup/apt --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include=python3.11-minimal,libpython3.11-stdlib,libstdc++6,ca-certificates bookworm "$work/root"
  (cd "$work/root/var/cache/apt/archives" && ls -- *.deb) > "$CACHE/base.debs"
  # A service needs the interpreter, its libraries and certificates, but no shell, package tools or Perl.
  find "$work/root/usr/bin" "$work/root/usr/sbin" ! -type d ! -name python3.11 -delete
  rm -rf "$work/root"/{var,boot,media,mnt,opt,srv,home,run,root}/* "$work/root"/usr/{include,games} \
    "$work/root"/usr/share/{doc,man,locale,info,lintian,bash-completion,perl,perl5,debconf,menu,pixmaps,bug,base-files} \
    "$work/root"/usr/lib/{apt,dpkg,init,systemd,tmpfiles.d,x86_64-linux-gnu/{perl,perl-base,gconv,security}} \
    "$work/root"/usr/lib/python3.11/{test,idlelib,tkinter,turtledemo,ensurepip,lib2to3,pydoc_data,distutils} \
    "$work/root"/etc/{apt,dpkg,pam.d,security,perl,cron.daily,logrotate.d,default,alternatives,kernel,systemd,skel}
  ln -s python3.11 "$work/root/usr/bin/python3"
  # ca-certificates' maintainer script did not run
  cat "$work/root"/usr/share/ca-certificates/mozilla/*.crt > "$work/root/etc/ssl/certs/ca-certificates.crt"
  rm -rf "$work/root/usr/share/ca-certificates"
  printf 'root:x:0:0:root:/:/\ntidelog:x:10001:10001:tidelog:/var/lib/tidelog:/\n' > "$work/root/etc/passwd"
  printf 'root:x:0:\ntidelog:x:10001:\n' > "$work/root/etc/group"
  mkdir -p "$work/root/proc" "$work/root/sys" "$work/root/var/lib/tidelog" "$work/root/var/tmp" "$work/root/tmp" "$work/root/run/tidelog" "$work/root/$SITE"
  chmod 1777 "$work/root/tmp" "$work/root/var/tmp"
  chroot "$work/root" /usr/bin/python3.11 -I -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.11 || true
  layer base "$work/root" .
  mv "$work/root" "$ROOT_FS"
  made base "$stamp"
}

packages_layer() {
  local stamp; stamp=$({ declare -f packages_layer; cat "$CACHE/base.stamp" deploy/images/requirements.txt; } | sha256sum)
  up_to_date packages "$stamp" && return
  say "packages of deploy/images/requirements.txt"
  rm -rf "${ROOT_FS:?}/$SITE"; mkdir -p "$ROOT_FS/$SITE"; rm -f "$CACHE/code.stamp"
  "$PYTHON" -m pip --disable-pip-version-check install -q --target "$ROOT_FS/$SITE" --no-deps --require-hashes \
    --only-binary :all: --implementation cp --python-version 3.11 --platform manylinux_2_28_x86_64 \
    --platform manylinux_2_17_x86_64 --platform manylinux2014_x86_64 --platform manylinux1_x86_64 \
    -r deploy/images/requirements.txt
  # half of the API server's client is for asyncio and is not used
  rm -rf "$ROOT_FS/$SITE"/{bin,kubernetes/aio}
  find "$ROOT_FS/$SITE" -depth -type d -name tests -exec rm -rf {} +
  in_root -m compileall -q -j 2 --invalidation-mode unchecked-hash "/$SITE"
  layer packages "$ROOT_FS" "$SITE"
  made packages "$stamp"
}

# Prints the paths that a wheel of the revision is built from. Releases before ADR 0022 also have client/.
wheel_paths() {
  local revision=$REVISION
  [ "$revision" != worktree ] || revision=HEAD
  git ls-tree --name-only "$revision" services client pyproject.toml hatch_build.py README.md LICENSE
}

# Prints the wheel of `make compiled`, if it matches this revision and the image's Python.
compiled_wheel() {
  [ "$REVISION" = worktree ] || git diff --quiet "$REVISION" -- services pyproject.toml hatch_build.py || return 0
  ! make -sq build/compiled/.made 2>/dev/null || ls build/wheel/tidelog-*-cp311-cp311-*.whl 2>/dev/null || true
}

code_layer() {
  local stamp tree wheel paths
  paths=$(wheel_paths)
  # $paths is left unquoted below, because its names contain no spaces and each is an argument of its own.
  if [ "$REVISION" = worktree ]; then
    tree=$(git ls-files -z $paths protos | xargs -0 sha256sum 2>/dev/null | sha256sum)
  else
    tree=$(git ls-tree -r "$REVISION" $paths)
  fi
  wheel=$(compiled_wheel)
  stamp=$({ declare -f code_layer; cat "$CACHE/packages.stamp" deploy/images/tidelog; echo "$tree" "${wheel:+compiled}"; } | sha256sum)
  up_to_date code "$stamp" && return
  if [ -n "$wheel" ]; then say "the compiled wheel"; else say "tidelog's wheel of $REVISION, plain Python"; fi
  mkdir "$work/source" "$work/code"
  if [ "$REVISION" = worktree ]; then
    git ls-files -z $paths | tar --null --ignore-failed-read -T - -cf - | tar -C "$work/source" -xf -
  else
    git archive "$REVISION" $paths | tar -C "$work/source" -xf -
  fi
  local python; python=$(readlink -f .)/$PYTHON; [ -x "$python" ] || python=$PYTHON
  [ -n "$wheel" ] || (cd "$work/source" && "$python" -m hatchling build -t wheel -d "$work" >/dev/null 2>&1)
  mkdir -p "$work/code/$SITE" "$work/code/usr/local/bin"
  "$PYTHON" -m zipfile -e "${wheel:-$(ls "$work"/tidelog-*.whl)}" "$work/code/$SITE"
  install -m 755 deploy/images/tidelog "$work/code/usr/local/bin/tidelog"
  mkdir -p "$ROOT_FS/mnt/code"
  mount --bind "$work/code" "$ROOT_FS/mnt/code"
  # the paths are those in the image, so that tracebacks name existing files
  in_root -m compileall -q -j 2 --invalidation-mode unchecked-hash -s /mnt/code -p / /mnt/code || { umount "$ROOT_FS/mnt/code"; exit 1; }
  umount "$ROOT_FS/mnt/code"
  layer code "$work/code" usr
  made code "$stamp"
}

# Java, bash (for Spark's scripts) and tini in addition to Python. The services' layers contain the packages and tidelog.
spark_base_layer() {
  local stamp; stamp=$(declare -f spark_base_layer | sha256sum)
  if up_to_date spark-base "$stamp" && [ -d "$SPARK_ROOT_FS" ]; then return; fi
  command -v mmdebstrap >/dev/null || { echo "needs mmdebstrap: apt-get install mmdebstrap" >&2; exit 1; }
  say "base of the Spark image: Python and Java from Debian packages"
  rm -rf "$SPARK_ROOT_FS"; rm -f "$CACHE/spark-packages.stamp"
  # The maintainer scripts run, because they create Java's certificates.
  mmdebstrap --quiet --mode=root --variant=minbase --hook-dir=/usr/share/mmdebstrap/hooks/merged-usr \
    --include=python3.11-minimal,libpython3.11-stdlib,libstdc++6,ca-certificates,openjdk-17-jre-headless,tini \
    bookworm "$work/spark-root" >/dev/null 2>&1
  rm -rf "$work/spark-root"/var/{lib/apt,lib/dpkg,cache,log}/* "$work/spark-root"/usr/share/{doc,man,locale,info} \
    "$work/spark-root"/{boot,media,mnt,opt,srv,home,run,root,tmp,dev}/*
  ln -sf python3.11 "$work/spark-root/usr/bin/python3"
  printf 'tidelog:x:10001:10001:tidelog:/var/lib/tidelog:/\n' >> "$work/spark-root/etc/passwd"
  printf 'tidelog:x:10001:\n' >> "$work/spark-root/etc/group"
  mkdir -p "$work/spark-root/var/lib/tidelog" "$work/spark-root/var/tmp" "$work/spark-root/$SITE" "$work/spark-root/opt"
  ln -s "/$SITE/pyspark" "$work/spark-root/opt/spark"
  mkdir -p "$work/spark-root/dev/shm" # for semaphores of compileall
  chmod 1777 "$work/spark-root/tmp" "$work/spark-root/var/tmp"
  chroot "$work/spark-root" /usr/bin/python3.11 -I -m compileall -q --invalidation-mode unchecked-hash /usr/lib/python3.11 || true
  layer spark-base "$work/spark-root" .
  mv "$work/spark-root" "$SPARK_ROOT_FS"
  made spark-base "$stamp"
}

spark_packages_layer() {
  local stamp jars; jars=$("$PYTHON" -m tidelog.cli.main pipeline jars)
  stamp=$({ declare -f spark_packages_layer; cat "$CACHE/spark-base.stamp" deploy/images/requirements-spark.txt; echo "$jars"; } | sha256sum)
  up_to_date spark-packages "$stamp" && return
  say "packages of deploy/images/requirements-spark.txt, and Spark's JARs"
  rm -rf "${SPARK_ROOT_FS:?}/$SITE"; mkdir -p "$SPARK_ROOT_FS/$SITE"
  # pyspark is distributed only as source, without code to compile
  "$PYTHON" -m pip --disable-pip-version-check install -q --target "$SPARK_ROOT_FS/$SITE" --no-deps --require-hashes \
    --no-build-isolation -r deploy/images/requirements-spark.txt
  rm -rf "$SPARK_ROOT_FS/$SITE"/{bin,pyspark/examples,pyspark/python,pyspark/jars/connect-repl}
  xargs cp -t "$SPARK_ROOT_FS/$SITE/pyspark/jars" <<<"$jars"
  find "$SPARK_ROOT_FS/$SITE" -depth -type d -name tests -exec rm -rf {} +
  chroot "$SPARK_ROOT_FS" /usr/bin/python3.11 -I -m compileall -q -j 2 --invalidation-mode unchecked-hash "/$SITE" || true
  layer spark-packages "$SPARK_ROOT_FS" "$SITE"
  made spark-packages "$stamp"
}

spark_image() {
  python3 "$K8S_LAB/mkimage.py" "$work/spark.tar" "localhost/tidelog-spark:$TAG" \
    --layer "$CACHE/spark-base.tar" --layer "$CACHE/packages.tar" --layer "$CACHE/spark-packages.tar" --layer "$CACHE/code.tar" \
    --file deploy/images/spark-entrypoint:usr/local/bin/spark-entrypoint \
    --entrypoint '["spark-entrypoint"]' --user 10001:10001 --workdir /var/lib/tidelog \
    --env LANG=C.UTF-8 --env PYTHONUNBUFFERED=1 --env PYTHONDONTWRITEBYTECODE=1 --env SPARK_HOME=/opt/spark \
    --env PYSPARK_PYTHON=/usr/bin/python3 --env TIDELOG_SPARK_JARS=provided >/dev/null
}

# What an image contains, at the place where Containerfile puts it.
sbom() { # NAME ROOT_FS [OPTION...]
  python3 tools/kubernetes/image_sbom.py --name "$1" --site-packages "$2/$SITE" "${@:3}" --output "$work/sbom.cdx.json"
}

tidelog_image() {
  mkdir -p "$work/sbom-code"; tar -C "$work/sbom-code" -xf "$CACHE/code.tar" --wildcards '*.dist-info/*'
  sbom tidelog "$ROOT_FS" --site-packages "$work/sbom-code/$SITE" --debs "$CACHE/base.debs"
  # /usr/local/bin first: mkimage.py gives PATH
  python3 "$K8S_LAB/mkimage.py" "$work/tidelog.tar" "localhost/tidelog:$TAG" \
    --layer "$CACHE/base.tar" --layer "$CACHE/packages.tar" --layer "$CACHE/code.tar" \
    --file "$work/sbom.cdx.json:usr/local/share/sbom/tidelog.cdx.json" \
    --entrypoint '["tidelog"]' --user 10001:10001 --workdir /var/lib/tidelog \
    --env LANG=C.UTF-8 --env PYTHONUNBUFFERED=1 --env PYTHONDONTWRITEBYTECODE=1 \
    --env SSL_CERT_FILE=/etc/ssl/certs/ca-certificates.crt >/dev/null
}

etcd_image() {
  python3 "$K8S_LAB/mkimage.py" "$work/etcd.tar" "localhost/tidelog-etcd:$TAG" --file "$K8S_CACHE/bin/etcd:usr/local/bin/etcd" \
    --entrypoint '["etcd"]' --user 10001:10001 >/dev/null
}

node() { ctr --address "${K8S_RUN:-/var/lib/k8s-lab}/containerd/containerd.sock" -n k8s.io "$@"; }
# An image whose label names the same inputs need not be loaded again.
loaded() { node images ls "name==$1" 2>/dev/null | grep -qF "tidelog.made-of=$2"; }
load() { # NAME FILE STAMP
  "$K8S_LAB/cluster-up.sh" load "$2" >/dev/null
  node images label "$1" "tidelog.made-of=$3" >/dev/null
  say "loaded $1 ($(($(stat -c %s "$2") / 1000000)) MB)"
}

base_layer
packages_layer
code_layer
if [ "$WHICH" = spark ]; then
  spark_base_layer
  spark_packages_layer
  made_of=$(cat "$CACHE"/{code,spark-packages}.stamp deploy/images/spark-entrypoint | sha256sum | cut -c1-40)
  if ! loaded "localhost/tidelog-spark:$TAG" "$made_of"; then
    spark_image
    load "localhost/tidelog-spark:$TAG" "$work/spark.tar" "$made_of"
  fi
  exit
fi
made_of=$(cut -c1-40 "$CACHE/code.stamp")
if ! loaded "localhost/tidelog:$TAG" "$made_of"; then
  tidelog_image
  load "localhost/tidelog:$TAG" "$work/tidelog.tar" "$made_of"
fi
[ -x "$K8S_CACHE/bin/etcd" ] || { echo "no etcd in $K8S_CACHE/bin: run $K8S_LAB/cluster-up.sh" >&2; exit 1; }
made_of=$(sha256sum < "$K8S_CACHE/bin/etcd" | cut -c1-40)
if ! loaded "localhost/tidelog-etcd:$TAG" "$made_of"; then
  etcd_image
  load "localhost/tidelog-etcd:$TAG" "$work/etcd.tar" "$made_of"
fi
