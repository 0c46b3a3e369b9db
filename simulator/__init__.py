"""A simulator that tries to break the protocol: the real agents, over a store that fails them, in virtual time.

General layout, from what everything stands on up to what is run:

* ``engine`` is virtual time: threads as greenlets, clocks that drift. ``runtime`` gives it to core's drivers.
* ``store`` is a store on the far side of a network, at the end of ``lines``, each of whose servers is a ``replica``,
  and ``peers`` the network between the hosts; ``workers`` are what an agent starts; ``agent`` gives core's own
  supervisor ``hands`` that reach these instead of sockets and processes; ``world`` holds them all.
* ``plan`` is one schedule, every choice in it; ``rng`` draws one from a seed, with ``scripts`` where all plans of a
  profile have a fault; ``faults`` and ``outages`` carry it out.
* ``assumptions`` are what the rules assume, and a profile for each that breaks it; ``breaches`` are the faults that do,
  ``overlaps`` for how long rounds train at once then, and ``measure`` plays thousands and says what came of them.
* ``truth`` watches everything and knows the invariants, ``histories`` what was ever written; ``rules`` what else was
  promised, much of it to who is healthy (``calmness``): ``endings`` of who goes, ``forgetting`` of stores that forget,
  ``unreached`` of peers, ``slot_rules`` of who gets a place, ``leaders`` of those that decide one after another,
  ``proofs`` of who is taken for gone, ``departures`` of who had left before a store was emptied, ``strangers`` of what
  is forged, ``programs`` of which job is whose, ``crowd`` of who is silent among a thousand, ``checks`` of who is
  asked to leave before it enters; ``amendments`` and ``finishing`` only count
  how often other rules were come to; ``goals`` says when a job has got where it must, and
  ``entry_text`` an entry in a line.
* ``play`` runs one plan. ``shrinking`` makes a failing one small, ``campaign`` runs thousands on all cores, ``thawing``
  makes that cheaper. ``plant`` plants one of the ``defects``, ``repairs`` or ``claims``, where ``defect`` finds its
  place, and sees whether it is noticed. ``python -m simulator`` is the command line.
"""
