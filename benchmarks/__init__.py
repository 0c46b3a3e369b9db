"""Programs that measure what ``docs/performance.md`` says: ``make bench`` runs them."""
