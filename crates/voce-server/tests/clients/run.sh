#!/bin/sh
# Runs the real clients against a server with a small voice and a recogniser that counts.
# Needs Python 3.10 or later and, the first time, the network; Node and Chromium are used where they are.
# VENV and NODE_FOLDER name other places for the packages. VOCE_DSM and VOCE_UNMUTE name checkouts of kyutai-labs'
# delayed-streams-modeling and unmute (Python 3.12), whose own clients are then run as they are.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
venv=${VENV:-$here/.venv}
if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv"
    "$venv/bin/pip" -q install -r "$here/requirements.txt"
fi
if command -v npm >/dev/null; then
    node=${NODE_FOLDER:-$here}
    [ -d "$node/node_modules/openai" ] || (cd "$node" && npm install --silent)
    export VOCE_CLIENT_NODE="$node"
fi
cd "$here/../../../.."
VOCE_CLIENT_PYTHON="$venv/bin/python" cargo test -p voce-server --test e2e -- --ignored --nocapture clients
