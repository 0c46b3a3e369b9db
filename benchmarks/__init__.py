"""Programs that measure what ``benchmarks/RESULTS.md`` says: ``make bench`` runs them."""
