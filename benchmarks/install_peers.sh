#!/bin/sh
# Install the exporters that Stallwatch is compared with: Debian's packages when we may, nvitop-exporter into .cache/nvitop.
set -eu
missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need prometheus-process-exporter prometheus-process-exporter
need prometheus-blackbox-exporter prometheus-blackbox-exporter
need mtail mtail
need gcc gcc
need unshare util-linux
if [ -n "$missing" ]; then
  if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "the comparison needs these Debian packages:$missing" >&2
    exit 1
  fi
  apt-get update -qq
  # The services are not wanted, only the programs.
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
fi
if [ ! -x .cache/nvitop/bin/nvitop-exporter ]; then
  "${PYTHON:-python3}" -m venv .cache/nvitop
  .cache/nvitop/bin/pip install --quiet nvitop-exporter==1.7.2
fi
