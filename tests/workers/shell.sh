#!/bin/sh
# A worker that is no Python program, with a child in the background and one in the foreground.
sleep 1000 &
printf '{"event": "started", "rank": %d, "pid": %d, "child": %d, "arguments": "%s"}\n' "$RANK" $$ $! "$*"
[ "$1" = "finish" ] && { kill $!; exit 0; }
sleep 1000
