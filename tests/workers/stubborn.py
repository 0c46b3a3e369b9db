"""Ignores every polite request to end."""

from __future__ import annotations

import signal

from report import report

for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(signum, signal.SIG_IGN)
report("started")
while True:
    signal.pause()
