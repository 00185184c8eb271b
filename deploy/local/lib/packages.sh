# shellcheck shell=bash
# Debian packages that are missing, installed without leaving a server behind that nobody asked for.

# Prefixed to a command that needs root: nothing for root, sudo where it works.
find_root() {
  AS_ROOT=()
  ((EUID == 0)) && return
  command -v sudo >/dev/null || return
  AS_ROOT=(sudo)
  sudo -n true 2>/dev/null || { [[ -t 0 && -t 2 ]] && sudo -v; }
}

is_installed() { [[ $(dpkg-query -W -f '${db:Status-Status}' "$1" 2>/dev/null) == installed ]]; }

# Debian starts a server as soon as it is installed, unless this script says no. An existing one is
# somebody's choice and stays.
forbid_starts() {
  [[ ! -e $POLICY ]] || return 0
  trap allow_starts EXIT
  printf '#!/bin/sh\n# seckill: no server starts while its package is installed\nexit 101\n' |
    "${AS_ROOT[@]}" tee "$POLICY" >/dev/null
  "${AS_ROOT[@]}" chmod 755 "$POLICY"
}

allow_starts() {
  grep -qs '^# seckill:' "$POLICY" && "${AS_ROOT[@]}" rm -f "$POLICY"
  return 0
}

# Neither running now nor started by the next boot. Called only for packages that came just now.
leave_stopped() {
  local service=$1
  if command -v systemctl >/dev/null; then
    "${AS_ROOT[@]}" systemctl disable --now "$service" >/dev/null 2>&1 || true
  fi
  if command -v update-rc.d >/dev/null; then
    "${AS_ROOT[@]}" update-rc.d "$service" disable >/dev/null 2>&1 || true
  fi
}

# apt_get ARGUMENT...: without a question, its output shown only when it fails.
apt_get() {
  local output
  output=$("${AS_ROOT[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    -o Acquire::Retries=3 "$@" 2>&1 </dev/null) || { warn "$output"; return 1; }
}

# ensure_packages PACKAGE...: installs them, or names them all and gives up.
ensure_packages() (
  (($#)) || exit 0
  POLICY=/usr/sbin/policy-rc.d brought=() began=$(now)
  if ! command -v apt-get >/dev/null || ! find_root; then
    die "these packages are missing and cannot be installed from here (apt, and root or sudo, are needed): $*" "$EX_UNAVAILABLE"
  fi
  say "installing with apt: $*"
  is_installed redis-server || brought+=(redis-server)
  is_installed postgresql-common || brought+=(postgresql)
  forbid_starts
  apt_get update || warn "apt-get update failed, going on with the lists that are here"
  apt_get install -y --no-install-recommends "$@" || die "apt could not install: $*" "$EX_UNAVAILABLE"
  for service in "${brought[@]}"; do
    [[ " $* " != *" $service "* ]] || leave_stopped "$service"
  done
  say "installed in $(elapsed "$began")"
)

# stack_packages: what `stack up` needs and does not find.
stack_packages() {
  local java_package=openjdk-17-jre-headless
  command -v redis-cli >/dev/null || printf 'redis-tools\n'
  [[ -n ${SECKILL_REDIS_SERVER:-} ]] || command -v redis-server >/dev/null || printf 'redis-server\n'
  (($(newest_postgres || printf 0) >= 15)) || printf 'postgresql\n'
  if ! java_program >/dev/null; then
    # Debian 13 has no 17 any more; its default is newer and runs the broker as well.
    ! command -v apt-cache >/dev/null || apt-cache show "$java_package" >/dev/null 2>&1 || java_package=default-jre-headless
    printf '%s\n' "$java_package"
  fi
  jars_are_whole || command -v mvn >/dev/null || printf 'maven\n'
}
