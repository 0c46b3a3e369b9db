"""The keys of one job are no other job's."""

from __future__ import annotations

from elastic_rdzv_etcd.backend import Keys

NAMES = ["job", "job/1", "..", "größe 7*", "a\nb", "\udcff", "%2F"]


def test_jobs_have_keys_and_leases_of_their_own() -> None:
    keys = [Keys("/elastic", name) for name in NAMES]
    assert len({key.head for key in keys}) == len({key.lease for key in keys}) == len(NAMES)
    assert all(0 < key.lease < 1 << 63 for key in keys)
    assert not any(
        one.state.startswith(other.state[: -len("state/")]) for one in keys for other in keys if one is not other
    )
