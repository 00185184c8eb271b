# shellcheck shell=bash
# The private PostgreSQL cluster with its own role and database. Its programs refuse root, so under
# root they run as `postgres`, which owns the data folder and nothing else.

# Prefixed to every program of PostgreSQL: neither a shell nor a session in between, so that the process
# that is spawned is the server itself.
AS_POSTGRES=()
((EUID != 0)) || AS_POSTGRES=(setpriv --reuid=postgres --regid=postgres --init-groups --)

# Where the cluster lives. Normally below the stack's own folder; when that is hidden from the user
# `postgres` (a checkout under /root), in a folder under /var/lib that this stack alone uses, because
# the server could open nothing below a private folder.
choose_postgres_home() {
  if ((EUID == 0)) && ! "${AS_POSTGRES[@]}" test -x "$DATA" 2>/dev/null; then
    warn "the user postgres cannot enter $DATA: its data goes to /var/lib/seckill-local"
    printf '/var/lib/seckill-local/%s/postgres' "$(printf '%s' "$DIR" | sha256sum | head -c 16)"
  else
    printf '%s/postgres' "$DATA"
  fi
}

# The programs of the version that made the cluster, or the newest for a new cluster.
postgres_bin() {
  local version=
  [[ ! -s $POSTGRES_HOME/PG_VERSION ]] || version=$(cat "$POSTGRES_HOME/PG_VERSION")
  if [[ -n $version && ! -x /usr/lib/postgresql/$version/bin/postgres ]]; then
    warn "the cluster in $POSTGRES_HOME is of PostgreSQL $version, which is not installed;"
    warn "install it, or remove the data with '$0 down --wipe --dir $DIR'"
    return 1
  fi
  printf '/usr/lib/postgresql/%s/bin' "${version:-$(newest_postgres)}"
}

# Only a version whose server is there: the client's package makes such a folder as well.
newest_postgres() {
  find /usr/lib/postgresql -mindepth 3 -maxdepth 3 -path '*/bin/postgres' -printf '%P\n' 2>/dev/null |
    cut -d / -f 1 | sort -n | tail -n 1
}

# A cluster is made aside and moved into place when it is whole: an interrupted initdb leaves none.
init_cluster() {
  local new="$POSTGRES_HOME.new" password_file="$POSTGRES_HOME.password"
  make_dir "$(dirname "$POSTGRES_HOME")" || return
  rm -rf "$new" "$POSTGRES_HOME"
  mkdir -m 700 "$new"
  kept POSTGRES_ADMIN_PASSWORD | write_file "$password_file" 600
  ((EUID != 0)) || chown postgres: "$new" "$password_file"
  if ! "${AS_POSTGRES[@]}" "$1/initdb" --pgdata="$new" --username=postgres --pwfile="$password_file" \
    --auth=scram-sha-256 --encoding=UTF8 --locale=C.UTF-8 >"$LOG/initdb.log" 2>&1; then
    warn "initdb failed:"
    cat "$LOG/initdb.log" >&2
    return 1
  fi
  # Added to what initdb has found out about this machine (its kind of shared memory), not instead of it.
  printf "include 'seckill.conf'\n" >>"$new/postgresql.conf"
  rm -f "$password_file"
  mv "$new" "$POSTGRES_HOME"
}

# A crash can leave a lock file whose number now belongs to another process of the same user, which
# PostgreSQL would take for a running server. The caller has made sure that none works in this folder.
prepare_cluster() {
  rm -f "$POSTGRES_HOME/postmaster.pid"
  cp "$HERE/postgresql.conf" "$POSTGRES_HOME/seckill.conf"
  ((EUID != 0)) || chown postgres: "$POSTGRES_HOME/seckill.conf"
}

postgres_answers() { "$1/pg_isready" -q -h 127.0.0.1 -p "$2" -t 2; }

# Idempotent, and repeated at every start: an earlier one may have ended between two statements. The
# passwords travel in the environment, where `ps` does not show them.
create_role_and_database() {
  PGPASSWORD=$(kept POSTGRES_ADMIN_PASSWORD) SECKILL_ROLE_PASSWORD=$(kept POSTGRES_PASSWORD) \
    "$1/psql" -X -q -v ON_ERROR_STOP=1 -h 127.0.0.1 -p "$2" -U postgres -d postgres <<'SQL'
\getenv password SECKILL_ROLE_PASSWORD
SELECT 'CREATE ROLE seckill' WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = 'seckill') \gexec
-- Tests clone databases of their own, hence CREATEDB.
ALTER ROLE seckill LOGIN CREATEDB PASSWORD :'password';
SELECT 'CREATE DATABASE seckill OWNER seckill'
  WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = 'seckill') \gexec
SQL
}

# Chooses folder, passwords and port before anything starts in parallel.
plan_postgres() {
  local bin
  POSTGRES_HOME=$(kept POSTGRES_HOME) || { POSTGRES_HOME=$(choose_postgres_home) && keep POSTGRES_HOME "$POSTGRES_HOME"; }
  bin=$(postgres_bin) || return
  kept POSTGRES_PASSWORD >/dev/null || keep POSTGRES_PASSWORD "$(random_hex)"
  kept POSTGRES_ADMIN_PASSWORD >/dev/null || keep POSTGRES_ADMIN_PASSWORD "$(random_hex)"
  if server_pid postgres >/dev/null && postgres_answers "$bin" "$(kept PORT_POSTGRES)"; then
    return
  fi
  stop_server postgres INT
  ensure_port POSTGRES
}

start_postgres() {
  local bin port how="was running"
  bin=$(postgres_bin) && port=$(kept PORT_POSTGRES) || return
  if ! server_pid postgres >/dev/null; then
    how=started
    [[ -s $POSTGRES_HOME/PG_VERSION ]] || init_cluster "$bin" || return
    prepare_cluster || return
    spawn postgres "${AS_POSTGRES[@]}" "$bin/postgres" -D "$POSTGRES_HOME" -p "$port" || return
    await postgres 60 postgres_answers "$bin" "$port" || return
  fi
  create_role_and_database "$bin" "$port" || return
  ready postgres "$port" "$how"
}
