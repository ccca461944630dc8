#!/usr/bin/env bash
# Makes sure that there is a redis-server for the tests, which start servers of
# their own. On Debian and Ubuntu a missing one is installed, without starting
# or enabling the system's service; elsewhere this says what to install.
set -euo pipefail

needed=7 # major version

fail() {
	printf 'need-redis: %s\n' "$*" >&2
	exit 1
}

check_version() {
	local found
	found=$(redis-server --version | sed -n 's/.* v=\([0-9][0-9]*\)\..*/\1/p')
	[ -n "$found" ] || fail "cannot tell the version of $(command -v redis-server)"
	[ "$found" -ge "$needed" ] || fail "redis-server $found is too old: the tests need Redis $needed.0 or newer"
}

debian_like() {
	[ -r /etc/os-release ] && command -v apt-get >/dev/null 2>&1 || return 1
	# In a subshell, because the file sets variables of its own.
	(. /etc/os-release && case " ${ID:-} ${ID_LIKE:-} " in
	*" debian "* | *" ubuntu "*) true ;;
	*) false ;;
	esac)
}

as_root() {
	if [ "$(id -u)" -eq 0 ]; then
		"$@"
	else
		sudo "$@"
	fi
}

# Debian starts a service when its package is installed unless this file, which
# it asks first, forbids it. One that is there already (containers have one) is
# left as it is.
guard=/usr/sbin/policy-rc.d
forbid_services() {
	[ ! -e "$guard" ] || return 0
	trap 'as_root rm -f "$guard"' EXIT
	printf '#!/bin/sh\nexit 101\n' | as_root tee "$guard" >/dev/null
	as_root chmod 755 "$guard"
}

install_redis() {
	local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300)
	# One broken source among several must not stop us.
	as_root "${apt[@]}" update || echo 'need-redis: apt-get update failed, trying to install all the same' >&2
	as_root "${apt[@]}" install -y --no-install-recommends redis-server
	# Nor shall it come up with the next boot. Where systemd is not installed
	# only the links for it and for its predecessor are there to be undone.
	if command -v systemctl >/dev/null 2>&1; then
		as_root systemctl disable redis-server.service >/dev/null 2>&1 || true
	else
		as_root deb-systemd-helper disable redis-server.service >/dev/null 2>&1 || true
		as_root update-rc.d redis-server disable >/dev/null 2>&1 || true
	fi
}

if ! command -v redis-server >/dev/null 2>&1; then
	debian_like || fail "redis-server is not on PATH: install Redis $needed.0 or newer (Fedora: dnf install redis; Alpine: apk add redis; macOS: brew install redis)"
	[ "$(id -u)" -eq 0 ] || command -v sudo >/dev/null 2>&1 ||
		fail 'redis-server is not on PATH and there is no sudo: as root, apt-get install redis-server'
	echo 'need-redis: installing redis-server'
	forbid_services
	install_redis
fi
check_version
