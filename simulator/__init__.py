"""A deterministic simulator of the rendezvous protocol: real agents, a simulated store and network, virtual time.

A seed gives one *plan*: a job, latencies and a list of faults. A plan gives one course of events, which the invariants
and rules of ``docs/internals/protocol.md`` are checked against. The modules, from the foundations up:

* ``engine`` is virtual time: greenlets as threads, clocks that drift. ``runtime`` passes it to core's drivers.
* ``store`` is a store behind a network: a ``channel`` leads from each host to a server, a ``replica``. ``peers`` is the
  network between hosts, ``workers`` are a node's workers, and ``agent`` runs core's own supervisor over a simulated
  ``worker_group`` and ``inbox``. ``world`` holds all of them.
* ``plan`` is one schedule of faults. ``profiles`` draw one from a seed, ``scripted_profiles`` add faults that each plan
  of a profile has. ``faults`` and ``outages`` inject them.
* ``assumptions`` are those of the rules, each with a profile that breaks it by ``assumption_faults``; ``overlaps``
  measures how long rounds then train at once, and ``measure`` reports the outcome of many plans.
* ``checker`` has the invariants and calls the checks of rules: ``rules``, ``leave_rules``, ``slot_rules``,
  ``round_sizes``, ``resizes``, ``graceful_stops``, ``reachability``, ``leaders``, ``proofs``, ``verdicts``,
  ``questions``, ``departures``, ``forgeries``, ``programs``, ``idle_nodes``, ``health_checks`` and ``data_loss``.
  ``histories`` records all entries, ``health`` defines a healthy node, ``liveness`` the state that a job must reach.
  ``amendments`` and ``finish_coverage`` only count covered cases. ``entry_text`` describes an entry.
* ``play`` runs a plan, ``shrinker`` reduces a failing one, ``campaign`` runs thousands on all cores;
  ``mutable_dataclasses`` makes that faster.
* ``plant`` plants a ``defect`` (``defects``, ``store_defects``, ``proof_defects``), which the simulator must notice.
* ``spot``, ``spot_job`` and ``spot_leader`` replay traces of spot instances.

``python -m simulator`` is the command line.
"""
