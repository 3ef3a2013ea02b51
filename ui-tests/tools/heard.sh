#!/usr/bin/env bash
# tools/heard.sh URL: what the screen reader Orca says while the keyboard walks through JupyterLab (`heard.mjs`).
# URL is that of a JupyterLab with a cluster and a job: http://127.0.0.1:8888/lab?token=…
# It needs the packages orca, xvfb, dbus and at-spi2-core, and makes no sound.
set -uo pipefail
[ $# = 1 ] || { sed -n '2,4s/^# //p' "$0" >&2; exit 2; }
[ -n "${HEARD:-}" ] || exec env HEARD="$(mktemp -d -t hyperpod-heard.XXXXXX)" dbus-run-session -- "$0" "$1"
cd "$(dirname "$0")/.." || exit
screen=0
while [ -e "/tmp/.X11-unix/X$screen" ]; do screen=$((screen + 1)); done
export DISPLAY=:$screen HOME=$HEARD
started=()
trap 'kill "${started[@]}" 2>/dev/null; wait 2>/dev/null; rm -rf "$HEARD"' EXIT
{
    Xvfb "$DISPLAY" -screen 0 1440x960x24 -nolisten tcp & started+=($!)
    until [ -S "/tmp/.X11-unix/X$screen" ]; do sleep 0.1; done
    /usr/libexec/at-spi-bus-launcher --launch-immediately & started+=($!)
    orca --replace --debug-file="$HEARD/said" & started+=($!)
} >"$HEARD/log" 2>&1
until [ -s "$HEARD/said" ]; do sleep 0.2; done
sleep 5 # nothing says when Orca listens
node tools/heard.mjs "$1" "$HEARD/said"
