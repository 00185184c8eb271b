# shellcheck shell=bash
# The private Apache RocketMQ: a name server and a broker, their jars fetched with Maven from the pinned
# pom and shared by all stacks of this checkout.

readonly JARS="$ROOT/.local/rocketmq/lib" POM="$HERE/rocketmq/pom.xml"
readonly GET_ROUTE_OF_TOPIC=105

# Redeliveries within seconds, so that a test can wait for the third one. 18 levels, as by default.
readonly TEST_DELAY_LEVELS="1s 1s 1s 2s 2s 2s 3s 3s 3s 4s 4s 4s 5s 5s 5s 5s 5s 5s"

jars_are_whole() { [[ $(cat "$JARS/.pom" 2>/dev/null) == "$(sha256sum <"$POM")" ]]; }

# Copies the jars aside and moves them into place when all are there. Two stacks may start at once.
fetch_jars() {
  local began
  make_dir "$(dirname "$JARS")" || return
  (
    flock 8
    ! jars_are_whole || exit 0
    began=$(now)
    for attempt in 1 2 3; do
      rm -rf "$JARS.new"
      if mvn -q -B -Dstyle.color=never -f "$POM" dependency:copy-dependencies -DincludeScope=runtime \
        -DoutputDirectory="$JARS.new" 9>&- </dev/null; then
        sha256sum <"$POM" >"$JARS.new/.pom"
        rm -rf "$JARS"
        mv "$JARS.new" "$JARS"
        say "rocketmq  jars fetched  $(elapsed "$began")"
        exit 0
      fi
      warn "fetching the jars of RocketMQ failed (attempt $attempt of 3)"
    done
    exit "$EX_UNAVAILABLE"
  ) 8>"$JARS.lock"
}

# Java 17 where it is installed, whatever the default is.
java_program() {
  local candidate
  for candidate in /usr/lib/jvm/java-17-*/bin/java; do
    [[ -x $candidate ]] && { printf '%s' "$candidate"; return; }
  done
  command -v java
}

# A four-byte number in network order, as escapes for printf.
be32() { printf '\\x%02x\\x%02x\\x%02x\\x%02x' $(($1 >> 24 & 255)) $(($1 >> 16 & 255)) $(($1 >> 8 & 255)) $(($1 & 255)); }

# route_of TOPIC NAMESRV_PORT: asks the name server over its own protocol (total length, header length,
# a JSON header) and prints the whole answer. RocketMQ's own tool takes seconds to start its JVM.
route_of() (
  header="{\"code\":$GET_ROUTE_OF_TOPIC,\"flag\":0,\"language\":\"OTHER\",\"opaque\":1,"
  header+="\"serializeTypeCurrentRPC\":\"JSON\",\"version\":493,\"extFields\":{\"topic\":\"$1\"}}"
  exec 7<>"/dev/tcp/127.0.0.1/$2" || exit 1
  printf '%b%b%s' "$(be32 $((4 + ${#header})))" "$(be32 ${#header})" "$header" >&7
  read -r -a size < <(timeout 2 head -c 4 <&7 | od -An -tu1)
  ((${#size[@]} == 4)) || exit 1
  timeout 2 head -c $((size[0] << 24 | size[1] << 16 | size[2] << 8 | size[3])) <&7 | tr -d '\0'
) 2>/dev/null

namesrv_answers() { [[ $(route_of broker-a "$1") == *'"code":'* ]]; }

# The broker counts as ready when the name server hands out its address: before that no client finds it.
broker_is_routed() { [[ $(route_of broker-a "$1") == *"127.0.0.1:$2\""* ]]; }

booted() { grep -qs "boot success" "$LOG/$1.log"; }

namesrv_ready() { booted namesrv && namesrv_answers "$1"; }
broker_ready() { booted broker && broker_is_routed "$1" "$2"; }

namesrv_settings() {
  cat "$HERE/rocketmq/namesrv.conf"
  printf 'listenPort=%s\n' "$(kept PORT_NAMESRV)"
}

broker_settings() {
  cat "$HERE/rocketmq/broker.conf"
  printf '%s\n' "listenPort=$(kept PORT_BROKER)" "haListenPort=$(kept PORT_BROKER_HA)" \
    "namesrvAddr=127.0.0.1:$(kept PORT_NAMESRV)" \
    "storePathRootDir=$DATA/broker/store" "storePathCommitLog=$DATA/broker/store/commitlog"
  if [[ $PROFILE == test ]]; then
    printf 'messageDelayLevel=%s\n' "$TEST_DELAY_LEVELS"
  fi
}

# Whether a running process was started with the settings that hold now.
has_settings() { server_pid "$1" >/dev/null && [[ $("$1_settings") == "$(cat "$DATA/$1/$1.conf" 2>/dev/null)" ]]; }

# The name server is planned first: the broker's settings name its port.
plan_namesrv() {
  if has_settings namesrv && namesrv_answers "$(kept PORT_NAMESRV)"; then
    return
  fi
  stop_server namesrv KILL
  ensure_port NAMESRV
}

# A broker that listens is kept even if the name server does not know it yet: it registers by itself.
plan_broker() {
  if has_settings broker && port_is_used "$(kept PORT_BROKER)"; then
    return
  fi
  stop_server broker TERM
  # Its second listener is two below the first.
  ensure_port BROKER -2
  keep PORT_BROKER_FAST $(($(kept PORT_BROKER) - 2))
  ensure_port BROKER_HA
}

# java_server NAME MAIN_CLASS OPTION...: everything that it writes goes below its own folder, also the
# native library that the broker unpacks at each start and does not remove when it is killed. Without
# TLS, which nothing here uses, it does not spend its first second on making a certificate.
java_server() {
  local name=$1 main=$2
  shift 2
  make_dir "$DATA/$name" || return
  rm -rf "${DATA:?}/$name/tmp"
  make_dir "$DATA/$name/tmp" || return
  "${name}_settings" | write_file "$DATA/$name/$name.conf"
  ROCKETMQ_HOME="$DATA/$name" spawn "$name" "$(java_program)" "$@" -Duser.home="$DATA/$name" \
    -Djava.io.tmpdir="$DATA/$name/tmp" \
    -Dtls.server.mode=disabled -Drmq.logback.configurationFile="$HERE/rocketmq/logback.xml" \
    -Dseckill.log="$LOG/$name-detail.log" -cp "$JARS/*" "org.apache.rocketmq.$main" -c "$DATA/$name/$name.conf"
}

start_namesrv() {
  local port how="was running"
  port=$(kept PORT_NAMESRV) || return
  if ! server_pid namesrv >/dev/null; then
    how=started
    java_server namesrv namesrv.NamesrvStartup -Xms128m -Xmx256m -XX:+UseSerialGC || return
    await namesrv 60 namesrv_ready "$port" || return
  fi
  ready namesrv "$port" "$how"
}

start_broker() {
  local port how="was running"
  port=$(kept PORT_BROKER) || return
  # shellcheck disable=SC2034 # Read by `await`.
  if SPAWNED=$(server_pid broker); then
    await broker 60 broker_is_routed "$(kept PORT_NAMESRV)" "$port" || return
  else
    how=started
    java_server broker broker.BrokerStartup -Xms512m -Xmx512m -XX:MaxDirectMemorySize=512m -XX:+UseG1GC || return
    await broker 90 broker_ready "$(kept PORT_NAMESRV)" "$port" || return
  fi
  ready broker "$port" "$how"
}
