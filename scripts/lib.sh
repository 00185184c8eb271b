# shellcheck shell=bash
# What the scripts beside this file share. They are called by the Makefile and by .ci/run.
set -Eeuo pipefail

ROOT=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/.." && pwd)
cd "$ROOT"
for part in common packages process; do
  # shellcheck source=/dev/null
  . "deploy/local/lib/$part.sh"
done

# shellcheck disable=SC2034 # Used by the scripts that source this file.
readonly TOOLS="$ROOT/.local/tools" BIN="${CARGO_TARGET_DIR:-$ROOT/target}/debug" LOCAL="$ROOT/.local"

# Outside CI a new dependency may enter the lock file in passing; in CI it must be there already.
LOCKED=()
[[ -z ${CI:-} ]] || LOCKED=(--locked)

# need_compiler: what building takes. Some dependencies bring C code.
need_compiler() {
  local missing=()
  command -v cargo >/dev/null || die "cargo is missing: install Rust from https://rustup.rs" "$EX_UNAVAILABLE"
  command -v cc >/dev/null && command -v make >/dev/null || missing+=(build-essential)
  command -v pkg-config >/dev/null || missing+=(pkg-config)
  ensure_packages "${missing[@]}"
}

# need_tools: the pinned wheels of tools.txt, in a folder that is renewed when the list changes.
need_tools() {
  local wanted began
  wanted=$(sha256sum <scripts/tools.txt)
  if [[ $(cat "$TOOLS/.wanted" 2>/dev/null) != "$wanted" ]]; then
    python3 -c 'import ensurepip, venv' 2>/dev/null || ensure_packages python3-venv
    began=$(now)
    rm -rf "$TOOLS"
    python3 -m venv "$TOOLS"
    "$TOOLS/bin/pip" install --quiet --disable-pip-version-check --retries 5 --only-binary :all: \
      --require-hashes --requirement scripts/tools.txt || die "the tools could not be fetched" "$EX_UNAVAILABLE"
    printf '%s\n' "$wanted" >"$TOOLS/.wanted"
    say "tools fetched in $(elapsed "$began")"
  fi
  PATH=$TOOLS/bin:$PATH
}

# build_bins: every executable at once. A build of one package alone may choose other features for the
# dependencies that it shares, and then compiles them a second time.
build_bins() {
  local began
  began=$(now)
  cargo build "${LOCKED[@]}" --workspace --bins
  say "built in $(elapsed "$began")"
}

# load_stack FOLDER: its settings, for everything that is started from here.
load_stack() {
  [[ -r $1/stack.env ]] || die "no stack in $1: run 'make up' first" "$EX_UNAVAILABLE"
  set -a
  # shellcheck source=/dev/null
  . "$1/stack.env"
  set +a
}
