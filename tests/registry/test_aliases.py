"""Exactly one champion and a stored reason, whatever happens to the registry."""

import threading

import pytest

from shift_diffusion.registry import decisions, list_versions, promote, rollback
from shift_diffusion.registry.aliases import decide
from shift_diffusion.registry.versions import measurement_tags, with_alias
from shift_diffusion.tracking import TrackingError

NAME = "pictures"


def add(store, fid: float, n: int = 1024):
    """A version with a measured FID; no files, the gate looks at tags only."""
    if not store.client.search_registered_models(f"name = '{NAME}'"):
        store.client.create_registered_model(NAME)
    tags = measurement_tags("fid", {"fid": fid}, {"num_samples": n})
    number = int(store.client.create_model_version(NAME, "file:///nowhere", tags=tags).version)
    return next(version for version in list_versions(store, NAME) if version.number == number)


def challenge(store, fid: float, n: int = 1024, allowed: bool = True):
    version = add(store, fid, n)
    with store.lock("registry"):
        return decide(store, NAME, version, 0.0, allowed)


def standing(store) -> dict[str, int]:
    return {alias: version.number for version in list_versions(store, NAME) for alias in version.aliases}


def test_a_history(store):
    assert challenge(store, 100.0).promote
    assert standing(store) == {"champion": 1}
    assert challenge(store, 90.0).promote
    assert standing(store) == {"champion": 2, "previous": 1}
    assert not challenge(store, 95.0).promote
    assert not challenge(store, float("nan")).promote
    assert not challenge(store, 1.0, n=8).promote
    assert standing(store) == {"champion": 2, "previous": 1, "challenger": 5}
    assert not challenge(store, 80.0, allowed=False).promote
    assert standing(store)["champion"] == 2
    rollback(store, NAME)
    assert standing(store) == {"champion": 1, "previous": 2, "challenger": 6}
    rollback(store, NAME)
    assert standing(store)["champion"] == 2
    promote(store, NAME, 6, "looks better")
    assert standing(store) == {"champion": 6, "previous": 2}
    assert not promote(store, NAME, 6, "again").promote
    told = decisions(store, NAME)
    assert [item["version"] for item in told] == [1, 2, 3, 4, 5, 6, 1, 2, 6]
    assert all(item["reason"] for item in told)
    assert told[-1]["reason"] == "looks better"
    by_number = {version.number: version.tags for version in list_versions(store, NAME)}
    assert "worse" in by_number[3]["decision_reason"]
    assert "num_samples 8, not 1024" in by_number[5]["decision_reason"]
    assert "register.promote is off" in told[5]["reason"]


def test_deleted_champion_is_followed_by_its_predecessor(store):
    challenge(store, 100.0)
    challenge(store, 90.0)
    store.client.delete_model_version(NAME, "2")
    decision = challenge(store, 110.0)
    assert not decision.promote
    assert "the champion was deleted, version 1 takes its place again" in decision.reason
    assert standing(store) == {"champion": 1, "challenger": 3}


def test_deleted_champion_and_a_better_challenger(store):
    challenge(store, 100.0)
    challenge(store, 90.0)
    store.client.delete_model_version(NAME, "2")
    assert challenge(store, 95.0).promote
    assert standing(store)["champion"] == 3


def test_deleted_only_champion(store):
    challenge(store, 100.0)
    store.client.delete_model_version(NAME, "1")
    with pytest.raises(TrackingError, match="no previous"):
        rollback(store, NAME)
    assert challenge(store, 200.0).promote
    assert standing(store) == {"champion": 2}


def test_two_promotions_at_once(store):
    versions = [add(store, fid) for fid in (100.0, 90.0, 80.0, 70.0)]
    errors = []

    def run(version):
        try:
            with store.lock("registry"):
                decide(store, NAME, version, 0.0, True)
        except Exception as error:  # noqa: BLE001 - a thread's error must reach the test
            errors.append(error)

    threads = [threading.Thread(target=run, args=(version,)) for version in versions]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert not errors
    assert with_alias(store, NAME, "champion").number == 4
    assert len(decisions(store, NAME)) == 4


def test_unknown_version(store):
    challenge(store, 100.0)
    with pytest.raises(TrackingError, match="no version 7; versions: 1"):
        promote(store, NAME, 7, "")
    with pytest.raises(TrackingError, match="no version 1; versions: none"):
        promote(store, "nobody", 1, "")
