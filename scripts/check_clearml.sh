#!/usr/bin/env bash
# Runs ClearML's own SDK and commands against a ClearML server and says which step did not work.
#
#   scripts/check_clearml.sh                 the server of your clearml.conf or CLEARML_* variables
#   eval "$(transformer-serving env)" && scripts/check_clearml.sh       the embedded stack
#
# With CLEARML_SERVING_TASK_ID and CLEARML_DEFAULT_BASE_SERVE_URL set, a running inference app is
# also asked for the model that the pipeline registers, with the key of TRANSFORMER_SERVING_KEY where
# it has keys. Everything is made in a new project whose
# name is printed; delete it in the web app afterwards.
set -euo pipefail

here=$(cd "$(dirname "$0")/check_clearml" && pwd)
python=${PYTHON:-python3}
project="check clearml $(date -u +%Y%m%d-%H%M%S)-$$"
endpoint="check_clearml_$$"
work=$(mktemp -d)
serving=("$python" -m clearml_serving --id "${CLEARML_SERVING_TASK_ID:-}")
added=

finish() {
    # A step that failed leaves no endpoint to the service that was given.
    if [ -n "$added" ]; then
        timeout 300 "${serving[@]}" model remove --endpoint "$endpoint" >"$work/finish.log" 2>&1 ||
            echo "left    endpoint $endpoint: clearml-serving model remove --endpoint $endpoint"
    fi
    rm -rf "$work"
}
trap finish EXIT
cd "$work"

step() {
    local name=$1
    shift
    # A step that hangs is one that does not work.
    if timeout 300 "$@" >"$work/$name.log" 2>&1; then
        echo "ok      $name"
    else
        echo "failed  $name: $*"
        tail -n 30 "$work/$name.log"
        exit 1
    fi
}

echo "project '$project'"
step train "$python" "$here/train.py" "$project"
step read "$python" "$here/read.py" "$project"
served=
if [ -n "${CLEARML_SERVING_TASK_ID:-}" ] && [ -n "${CLEARML_DEFAULT_BASE_SERVE_URL:-}" ]; then
    served=yes
    added=yes
    step auto-update "${serving[@]}" model auto-update --engine custom --endpoint "$endpoint" \
        --name "$project" --published --preprocess "$here/preprocess.py"
fi
step pipeline "$python" "$here/pipeline.py" "$project" "$project"
if [ -n "$served" ]; then
    step served "$python" "$here/served.py" "$endpoint"
    step remove "${serving[@]}" model remove --endpoint "$endpoint"
    added=
else
    echo "left    served: set CLEARML_SERVING_TASK_ID and CLEARML_DEFAULT_BASE_SERVE_URL for it"
fi
echo "all steps worked"
