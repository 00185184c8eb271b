# shellcheck shell=bash
# The private Redis. SECKILL_REDIS_SERVER names another binary (Redis 8, Valkey).

redis_answers() { [[ $(timeout 2 redis-cli -h 127.0.0.1 -p "$1" PING 2>/dev/null) == PONG ]]; }

redis_binary() { command -v "${SECKILL_REDIS_SERVER:-redis-server}"; }

plan_redis() {
  local binary pid
  binary=$(readlink -f "$(redis_binary)") || die "SECKILL_REDIS_SERVER names no program: $SECKILL_REDIS_SERVER" "$EX_USAGE"
  if pid=$(server_pid redis) && [[ $(exe_of "$pid") == "$binary" ]] && redis_answers "$(kept PORT_REDIS)"; then
    return
  fi
  stop_server redis TERM
  ensure_port REDIS
}

start_redis() {
  local port how="was running"
  port=$(kept PORT_REDIS) || return
  make_dir "$DATA/redis" || return
  if ! server_pid redis >/dev/null; then
    how=started
    spawn redis "$(redis_binary)" "$HERE/redis.conf" --port "$port" --dir "$DATA/redis" || return
    # A large append-only file is loaded before the first answer.
    await redis 60 redis_answers "$port" || return
  fi
  ready redis "$port" "$how"
}
