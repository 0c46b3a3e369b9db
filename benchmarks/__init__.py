"""Programs that measure what ``docs/performance.md`` says: ``python -m benchmarks.launchers`` is the one to run."""
