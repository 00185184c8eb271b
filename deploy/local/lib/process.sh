# shellcheck shell=bash
# Which processes are ours, and how they are started and stopped.
#
# A number in a file proves nothing after a reboot or a crash: another process may have it by now. A
# server of the stack is recognised by what only it has, the working directory (its own data folder)
# together with its executable; a service by its executable and by having started before its run file
# was written.

readonly SERVICE_STOP_SECONDS=30 SERVER_STOP_SECONDS=40

# The executable of a process, also after a package upgrade has replaced the file.
exe_of() {
  local exe
  exe=$(readlink "/proc/$1/exe" 2>/dev/null) || return 1
  printf '%s' "${exe% (deleted)}"
}

parent_of() { awk '/^PPid:/ { print $2 }' "/proc/$1/status" 2>/dev/null; }

is_alive() {
  local state
  state=$(awk '/^State:/ { print $2 }' "/proc/$1/status" 2>/dev/null) || return 1
  [[ -n $state && $state != Z ]]
}

json_field() { sed -n "s/.*\"$2\"[[:space:]]*:[[:space:]]*\"\{0,1\}\([^\",}]*\).*/\1/p" "$1" 2>/dev/null | head -n 1; }

# pids_in FOLDER: processes of the expected kind that work in that folder, a server and its children.
pids_in() {
  local folder=$1 link cwd pid
  while read -r link cwd; do
    [[ $cwd == "$folder" ]] || continue
    pid=${link#/proc/} pid=${pid%/cwd}
    case $(basename "$(exe_of "$pid")") in
      *redis* | *valkey* | *keydb* | postgres | java) printf '%s\n' "$pid" ;;
    esac
  done < <(find /proc/[0-9]*/cwd -maxdepth 0 -printf '%p %l\n' 2>/dev/null)
  return 0
}

# server_pid NAME: the server's own process, whose parent is none of its kind. Fails when it is down.
server_pid() {
  local pids pid
  pids=$(pids_in "$(home_of "$1")")
  for pid in $pids; do
    grep -qx "$(parent_of "$pid")" <<<"$pids" || { printf '%s' "$pid"; return; }
  done
  return 1
}

# spawn NAME COMMAND...: starts a server in its data folder, in a session of its own and without the
# lock of this script, its output in a fresh log; the log of the start before is kept beside it.
spawn() {
  local name=$1
  shift
  [[ ! -e $LOG/$name.log ]] || mv -f "$LOG/$name.log" "$LOG/$name.log.1"
  cd "$(home_of "$name")" || return
  setsid "$@" </dev/null >"$LOG/$name.log" 2>&1 9>&- &
  SPAWNED=$!
  cd "$ROOT" || return
}

# record NAME ADDRESS: the run file of a server, the same shape as a service's.
record() {
  local pid
  pid=$(server_pid "$1") || return
  printf '{"service":"%s","pid":%s,"address":"%s"}\n' "$1" "$pid" "$2" | write_file "$RUN/$1.json"
}

# become_ready SECONDS PROBE...: waits until the probe succeeds. A process that was spawned and has ended
# can never become ready, so its end ends the wait.
become_ready() {
  local seconds=$1
  shift
  READY=
  wait_until "$seconds" ready_or_dead "$@" || true
  [[ -n $READY ]]
}

ready_or_dead() {
  if "$@"; then READY=1; else ! is_alive "$SPAWNED"; fi
}

# await NAME SECONDS PROBE...: a dead or silent server shows its last lines.
await() {
  local name=$1 seconds=$2
  shift 2
  become_ready "$seconds" "$@" && return
  warn "$name ended or was not ready within $seconds s; the end of $LOG/$name.log:"
  tail -n 15 "$LOG/$name.log" | sed 's/^/    /' >&2
  return 1
}

# When a process started, in seconds since the epoch: ticks after boot, the 22nd field of its stat
# line, counted behind the name because that may contain blanks.
started_at() {
  local line fields boot
  line=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  read -ra fields <<<"${line##*) }"
  boot=$(awk '/^btime/ { print $2 }' /proc/stat)
  printf '%d' $((boot + fields[19] / $(getconf CLK_TCK)))
}

# is_service FILE: whether the process in a run file is still the one that wrote it.
is_service() {
  local file=$1 pid service started written
  pid=$(json_field "$file" pid) service=$(json_field "$file" service)
  [[ $pid =~ ^[0-9]+$ && -n $service ]] && is_alive "$pid" || return 1
  [[ $(basename "$(exe_of "$pid")") == "$service" ]] || return 1
  started=$(started_at "$pid") && written=$(stat -c %Y "$file") || return 1
  ((started <= written + 2))
}

# Run files of services: the stack's own servers are not among them.
service_files() {
  local file
  for file in "$RUN"/*.json; do
    [[ -e $file ]] || continue
    case $(basename "$file") in
      redis.json | postgres.json | namesrv.json | broker.json) ;;
      *) printf '%s\n' "$file" ;;
    esac
  done
}

any_service_runs() {
  local file
  while read -r file; do
    is_service "$file" && return
  done < <(service_files)
  return 1
}

all_gone() {
  local pid
  for pid in "$@"; do
    is_alive "$pid" && return 1
  done
  return 0
}

# The services first, together: they need the servers to finish what they hold.
stop_services() {
  local file pids=()
  while read -r file; do
    if is_service "$file"; then
      pids+=("$(json_field "$file" pid)")
      kill -TERM "${pids[-1]}" 2>/dev/null || true
    fi
  done < <(service_files)
  if ((${#pids[@]})) && ! wait_until "$SERVICE_STOP_SECONDS" all_gone "${pids[@]}"; then
    warn "some services did not end within $SERVICE_STOP_SECONDS s of SIGTERM and were killed"
    kill -KILL "${pids[@]}" 2>/dev/null || true
  fi
  service_files | xargs -r -d '\n' rm -f
  ((${#pids[@]} == 0)) || say "stopped ${#pids[@]} service process(es)"
}

none_in() { [[ -z $(pids_in "$1") ]]; }

# stop_server NAME SIGNAL: waits until the server and its children are gone.
stop_server() {
  local name=$1 signal=$2 began pid
  began=$(now)
  if pid=$(server_pid "$name"); then
    kill "-$signal" "$pid" 2>/dev/null || true
    if ! wait_until "$SERVER_STOP_SECONDS" none_in "$(home_of "$name")"; then
      warn "$name did not end within $SERVER_STOP_SECONDS s of SIG$signal and was killed"
      pids_in "$(home_of "$name")" | xargs -r kill -KILL
      wait_until 5 none_in "$(home_of "$name")" || warn "$name cannot be killed"
    fi
    say "$(printf '%-9s stopped  %s' "$name" "$(elapsed "$began")")"
  fi
  rm -f "$RUN/$name.json"
}
