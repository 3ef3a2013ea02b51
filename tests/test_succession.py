"""Which host serves a store: one at a time, and another one only after silence, on request or after a farewell."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jupyter_hyperpod.core.errors import ClusterError
from jupyter_hyperpod.storage import host_lease
from jupyter_hyperpod.storage.host_lease import LEASE_S, RENEW_S, LeaseRecord, OtherHost
from jupyter_hyperpod.storage.store import Store
from jupyter_hyperpod.supervisor.succession import Succession, take_turn

HOSTS = ("a", "b", "c")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store").prepare()


def test_the_first_host_takes_its_turn_at_once_and_another_one_after_silence(store: Store) -> None:
    first, second = Succession(store, host="a"), Succession(store, host="b")
    assert first.try_to_take(100.0)
    assert (first.turn, first.before) == (1, "")
    for beat in range(20):
        now_s = 100.0 + beat
        assert first.renew(now_s)
        assert not second.try_to_take(now_s), "the other host is alive"
    assert not second.try_to_take(119.0 + LEASE_S - 0.01)
    assert second.try_to_take(119.0 + LEASE_S)
    assert (second.turn, second.before) == (2, "a")
    assert not first.renew(200.0), "a host that wakes up finds that it was replaced"
    assert first.served == "b"


def test_a_host_that_is_asked_to_hand_over_finds_out_when_it_renews(store: Store) -> None:
    first, second = Succession(store, host="a"), Succession(store, host="b")
    assert first.try_to_take(100.0)
    assert second.try_to_take(100.1, at_once=True)
    assert first.renew(100.1), "it does not look more often than it renews"
    assert not first.renew(100.1 + RENEW_S)
    first.leave()
    assert second.served == "b", "who was replaced does not take the turn of the other with it"


def test_after_a_farewell_nobody_waits(store: Store) -> None:
    first, second = Succession(store, host="a"), Succession(store, host="b")
    assert first.try_to_take(100.0)
    first.leave()
    assert second.try_to_take(100.1)
    assert (second.turn, second.before) == (2, "")


def test_who_stood_by_for_a_cluster_that_was_stopped_has_nothing_to_take_over(store: Store) -> None:
    first, second = Succession(store, host="a"), Succession(store, host="b")
    assert first.try_to_take(100.0)
    assert not second.try_to_take(100.1)
    first.leave()
    assert not second.try_to_take(100.2)
    assert second.over
    assert not second.turn


def test_the_same_host_goes_on_without_waiting(store: Store) -> None:
    assert Succession(store, host="a").try_to_take(100.0)
    again = Succession(store, host="a")
    assert again.try_to_take(100.1)
    assert (again.turn, again.before) == (2, "")


def test_a_process_that_died_while_it_took_over_is_waited_for_only_once(store: Store) -> None:
    assert Succession(store, host="a").try_to_take(100.0)
    assert host_lease.claim(store, 2)  # and then its host lost its power
    second = Succession(store, host="b")
    assert not second.try_to_take(200.0)
    assert not second.try_to_take(200.0 + LEASE_S), "it has only just seen that the turn was claimed"
    assert second.try_to_take(200.0 + 2 * LEASE_S)
    assert second.turn == 3


def test_of_many_that_try_at_once_one_wins(store: Store) -> None:
    start, taken = threading.Barrier(16), []

    def claim() -> None:
        start.wait(30)
        if host_lease.claim(store, 1):
            taken.append(threading.get_ident())

    threads = [threading.Thread(target=claim) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert len(taken) == 1


def test_claims_do_not_pile_up(store: Store) -> None:
    succession = Succession(store, host="a")
    for number in range(60):
        assert succession.try_to_take(100.0 + number)
    assert len(list((store.cluster / host_lease.CLAIMS).iterdir())) == host_lease.CLAIMS_KEPT


def test_a_torn_record_is_no_reason_to_take_over(store: Store) -> None:
    first, second = Succession(store, host="a"), Succession(store, host="b")
    assert first.try_to_take(100.0)
    assert not second.try_to_take(100.0)
    (store.cluster / host_lease.RECORD).write_bytes(b'{"turn": 1, "ho')
    assert host_lease.read(store) is None
    assert not second.try_to_take(100.1)
    assert first.renew(101.0)
    assert not second.try_to_take(101.0)


def test_a_record_never_changes_its_size_or_its_inode(store: Store) -> None:
    succession, path = Succession(store, host="a" * 64), store.cluster / host_lease.RECORD
    assert succession.try_to_take(100.0)
    before = os.stat(path)
    assert succession.renew(200.0)
    after = os.stat(path)
    assert (after.st_ino, after.st_size) == (before.st_ino, before.st_size)
    assert after.st_mode & 0o777 == 0o600


def test_a_supervisor_that_starts_says_where_the_other_one_is(store: Store) -> None:
    other, over = Succession(store, host="elsewhere"), threading.Event()
    assert other.try_to_take(0.0)

    def live() -> None:
        now_s = 0.0
        while not over.wait(0.1):
            other.renew(now_s := now_s + RENEW_S)

    thread = threading.Thread(target=live)
    thread.start()
    try:
        with pytest.raises(ClusterError, match="the supervisor of .* is on elsewhere"):
            take_turn(store, ".")
        assert host_lease.served_by(store) == "elsewhere"
    finally:
        over.set()
        thread.join(50)


def test_a_supervisor_that_starts_replaces_a_silent_host(store: Store) -> None:
    assert Succession(store, host="elsewhere").try_to_take(0.0)
    found = take_turn(store, ".")
    assert (found.turn, found.before) == (2, "elsewhere")


def test_who_asks_again_and_again_sees_the_end_of_the_other_host(store: Store) -> None:
    other, watch = Succession(store, host="elsewhere"), OtherHost(store)
    assert not watch.serves(100.0)
    assert other.try_to_take(0.0)
    assert watch.serves(101.0)
    assert watch.serves(101.0 + LEASE_S - 0.1)
    assert not watch.serves(101.0 + LEASE_S)
    assert other.renew(50.0)
    assert watch.serves(101.0 + 2 * LEASE_S)
    other.leave()
    assert not watch.serves(101.1 + 2 * LEASE_S)


def test_hosts_have_directories_of_their_own(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    assert host_lease.settle_first_host(store) == store.cluster
    monkeypatch.setattr(host_lease, "this_host", lambda: "elsewhere")
    assert host_lease.settle_first_host(store) == store.cluster, "the same machine has got another name"
    monkeypatch.setattr(host_lease, "this_machine", lambda: "another boot")
    assert host_lease.settle_first_host(store) == store.cluster / host_lease.OTHER_HOSTS / "elsewhere"
    assert host_lease.directory_of_host(store).stat().st_mode & 0o777 == 0o700


def test_a_machine_that_is_renamed_is_the_same_host(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    succession = Succession(store)
    assert succession.try_to_take(100.0)
    monkeypatch.setattr(host_lease, "this_host", lambda: "laptop-at-the-cafe")
    assert host_lease.elsewhere(store) == "" == host_lease.served_by(store)
    assert host_lease.directory_of_host(store) == store.cluster
    again = take_turn(store, ".")
    assert (again.turn, again.before) == (2, "")
    assert not succession.renew(200.0)


def test_a_record_of_another_place_leads_clients_there(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    (store.cluster / host_lease.FIRST_HOST).write_text("first another-boot\n")
    assert Succession(store, "on/old-name").try_to_take(100.0)
    assert host_lease.directory_of_host(store) == store.cluster / "on" / "old-name"


EVENTS = st.lists(st.tuples(st.sampled_from(HOSTS), st.floats(0.01, 2 * LEASE_S)), min_size=1, max_size=60)


@given(EVENTS)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_two_hosts_serve_whatever_their_pauses(tmp_path_factory: pytest.TempPathFactory, events: list) -> None:  # type: ignore[type-arg]
    """Each host looks when it is its turn to run, after any pause: whoever served before finds out at its next look."""
    store, now_s = Store(tmp_path_factory.mktemp("turns")).prepare(), 1000.0
    hosts = {name: Succession(store, host=name) for name in HOSTS}
    serving: dict[str, float] = {}  # host -> when it renewed last
    for name, pause_s in events:
        now_s += pause_s
        if name in serving:
            newest = max(hosts[other].turn for other in HOSTS)
            stays = hosts[name].renew(now_s)
            if now_s - serving[name] >= RENEW_S:
                assert stays == (hosts[name].turn == newest)
                serving[name] = now_s
            if not stays:
                del serving[name]
                hosts[name] = Succession(store, host=name)
        elif hosts[name].try_to_take(now_s):
            assert all(now_s - renewed_s >= LEASE_S for renewed_s in serving.values()), "it was alive"
            serving[name] = now_s
    record = host_lease.read(store)
    if serving:
        assert isinstance(record, LeaseRecord)
        assert record.host == max(serving, key=lambda name: hosts[name].turn)
