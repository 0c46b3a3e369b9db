from __future__ import annotations

from elastic_core.rendezvous.retry import RETRY_FIRST, RETRY_MOST, Backoff


def test_each_failure_in_a_row_doubles_the_pause_up_to_a_limit() -> None:
    backoff = Backoff()
    pauses = [backoff.failed() for _ in range(7)]
    assert pauses == [RETRY_FIRST, 0.2, 0.4, 0.8, 1.6, RETRY_MOST, RETRY_MOST]


def test_after_a_success_the_next_failure_is_a_first_one() -> None:
    backoff = Backoff()
    backoff.failed()
    backoff.failed()
    backoff.worked()
    assert backoff.failed() == RETRY_FIRST


def test_it_never_waits_longer_than_it_is_given() -> None:
    backoff = Backoff(most=0.5)
    assert [backoff.failed() for _ in range(5)] == [0.1, 0.2, 0.4, 0.5, 0.5]
