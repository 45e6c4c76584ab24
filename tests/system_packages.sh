#!/bin/sh
# Install the programs that the tests run for real, when we may; say which are missing and fail when we may not.
set -eu
missing=""
need() { command -v "$1" >/dev/null 2>&1 || missing="$missing $2"; }
need gcc gcc
need promtool prometheus
need amtool prometheus-alertmanager
need victoria-metrics victoria-metrics
need curl curl
need wget wget
need docker-compose docker-compose
need systemd-analyze systemd
need unshare util-linux
need chromium chromium
[ -e /usr/include/stdio.h ] || missing="$missing libc6-dev"
[ -e /usr/share/fonts/truetype/dejavu ] || missing="$missing fonts-dejavu-core"
[ -z "$missing" ] && exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
  apt-get update -qq
  # The services are not wanted, only the programs.
  # shellcheck disable=SC2086
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
else
  echo "the tests need these Debian packages:$missing" >&2
  exit 1
fi
