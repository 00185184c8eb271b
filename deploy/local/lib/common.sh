# shellcheck shell=bash
# Messages, small files and loopback ports, shared by every part of the local stack.

# The codes of sysexits.h that the whole project uses.
# shellcheck disable=SC2034 # Used by the files beside this one.
readonly EX_USAGE=64 EX_UNAVAILABLE=69

# Ports are five digits long, so that a proxy in a test can replace one by another inside a frame, and
# stay below Linux's default ephemeral range (32768 and up): an outgoing connection of a busy test
# could otherwise occupy the port of a server that is about to restart.
readonly PORT_MIN=20000 PORT_COUNT=12000

say() { printf '%s\n' "$*"; }

# Starts in the first column, so that a failure stands out among the progress lines.
warn() { printf '%s\n' "$*" >&2; }

die() {
  warn "error: $1"
  exit "${2:-1}"
}

# Seconds since the epoch with milliseconds, for the time that a step took.
now() { printf '%s' "$EPOCHREALTIME"; }

elapsed() { awk -v from="$1" -v to="$EPOCHREALTIME" 'BEGIN { printf "%.1f s", to - from }'; }

# wait_until SECONDS COMMAND...: repeats the probe until it succeeds or the deadline has passed.
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || return 1
    sleep 0.1
  done
}

# Writes standard input to a file that is complete or absent, never half there, and readable only by
# its owner when the mode says so.
write_file() {
  local path=$1 mode=${2:-644} temporary
  temporary=$(mktemp "$path.XXXXXX")
  cat >"$temporary"
  chmod "$mode" "$temporary"
  mv -f "$temporary" "$path"
}

# The folders above PostgreSQL's data must be traversable by its user, whatever the umask is here.
make_dir() { mkdir -p "$1" && chmod 755 "$1"; }

# kept NAME: a value that an earlier start chose (a port, a secret). Fails when there is none.
kept() {
  local value
  value=$(sed -n "s/^$1=//p" "$KEPT_FILE" 2>/dev/null | tail -n 1)
  [[ -n $value ]] && printf '%s' "$value"
}

# keep NAME VALUE: remembers it for later starts. Callers hold the stack's lock.
keep() {
  { grep -v "^$1=" "$KEPT_FILE" 2>/dev/null || true; printf '%s=%s\n' "$1" "$2"; } |
    write_file "$KEPT_FILE" 600
}

random_base64() { head -c 32 /dev/urandom | base64 -w 0; }
random_hex() { od -An -N16 -tx1 /dev/urandom | tr -d ' \n'; }

# used_ports [STATE]: every local TCP port, one a line in decimal; with a state, only those in it. Read
# from /proc because `ss` is not everywhere.
used_ports() {
  local _ address state
  while read -r _ address _ state _; do
    [[ $address == *:* && ${1:-$state} == "$state" ]] && printf '%d\n' "0x${address##*:}"
  done < <(cat /proc/net/tcp /proc/net/tcp6 2>/dev/null)
  return 0
}

# Only a listener stands in the way of a server: what the connections of a dead one leave behind does not.
# (No `grep -q` at the end of a pipe: its early exit would fail the writer, and with it the pipe.)
port_is_used() { used_ports 0A | grep -x "$1" >/dev/null; }

# choose_port NAME [COMPANION_OFFSET]: a free port that no other part of this stack keeps. With an
# offset, the port that far away is free as well (the broker opens a second listener beside its first).
choose_port() {
  local name=$1 offset=${2:-0} port taken
  taken=$(used_ports; sed -n 's/^PORT_[A-Z_]*=//p' "$KEPT_FILE" 2>/dev/null || true)
  for _ in {1..1000}; do
    port=$((PORT_MIN + RANDOM % PORT_COUNT))
    if ! grep -qxE "$port|$((port + offset))" <<<"$taken"; then
      keep "PORT_$name" "$port"
      return
    fi
  done
  die "no free loopback port for $name between $PORT_MIN and $((PORT_MIN + PORT_COUNT))"
}

# ensure_port NAME [COMPANION_OFFSET]: keeps the earlier port while nobody else has taken it, otherwise
# chooses a new one. Only for a server that is not running; a running one holds its own port.
ensure_port() {
  local name=$1 offset=${2:-0} port
  if port=$(kept "PORT_$name"); then
    if ! port_is_used "$port" && ! port_is_used "$((port + offset))"; then
      return
    fi
    warn "port $port ($name) is taken by someone else: choosing another"
  fi
  choose_port "$name" "$offset"
}
