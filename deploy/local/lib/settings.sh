# shellcheck shell=bash
# stack.env: the settings that every binary, script and test of this stack reads.

readonly METRICS_SERVICES="RESERVATION_FRONT OUTBOX_SCANNER ORDER_CONSUMER COMPENSATION_WORKER RECONCILER"

# The ports that services will open. While one runs they are in use by it, so they are left as they are.
plan_service_ports() {
  local service
  if any_service_runs; then
    return
  fi
  ensure_port FRONT
  for service in $METRICS_SERVICES; do
    ensure_port "METRICS_$service"
  done
}

# Plain KEY=value lines without quotes or blanks, for `set -a; . stack.env` as for a simple parser.
write_settings() {
  local service
  plan_service_ports
  kept HMAC_SECRET >/dev/null || keep HMAC_SECRET "$(random_base64)"
  {
    printf '# Written by deploy/local/stack; load it with: set -a; . %s; set +a\n' "$DIR/stack.env"
    printf 'SECKILL_REDIS_URL=redis://127.0.0.1:%s\n' "$(kept PORT_REDIS)"
    printf 'SECKILL_REDIS_COMMAND_TIMEOUT_MS=1000\n'
    printf 'SECKILL_DATABASE_URL=postgres://seckill:%s@127.0.0.1:%s/seckill\n' \
      "$(kept POSTGRES_PASSWORD)" "$(kept PORT_POSTGRES)"
    printf 'SECKILL_ROCKETMQ_NAMESRV=127.0.0.1:%s\n' "$(kept PORT_NAMESRV)"
    printf 'SECKILL_FRONT_ADDR=127.0.0.1:%s\n' "$(kept PORT_FRONT)"
    printf 'SECKILL_HMAC_SECRETS=1:%s\n' "$(kept HMAC_SECRET)"
    printf '# Where spans and metrics are sent, such as http://127.0.0.1:4317; empty sends none.\n'
    printf 'SECKILL_OTLP_ENDPOINT=%s\n' "${SECKILL_OTLP_ENDPOINT:-}"
    for service in $METRICS_SERVICES; do
      printf 'SECKILL_METRICS_%s=127.0.0.1:%s\n' "$service" "$(kept "PORT_METRICS_$service")"
    done
    printf 'SECKILL_RUN_DIR=%s\n' "$RUN"
  } | write_file "$DIR/stack.env" 600
}
