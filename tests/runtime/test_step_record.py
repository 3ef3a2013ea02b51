"""Records of steps: rank 0 journals each; where it is lost with what its head does not have, another one does."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from jupyter_hyperpod.runtime.session.step_record import Commits


class Member:
    """What a session has of its group, and the journal of one member."""

    session = 1

    def __init__(self, rank: int, kept_s: float) -> None:
        self.plan: Any = SimpleNamespace(
            rank=rank, generation=1, world_size=2, owners=("a", "b"), holdings=([(0, 2)], [(2, 4)])
        )
        sizes: Any = SimpleNamespace(samples=lambda _: 16, record=lambda _: {})
        self.journaled: list[dict[str, Any]] = []
        group: Any = self
        self.commits = Commits(group, sizes, kept_s)

    def journal(self, kind: str, data: dict[str, Any]) -> None:
        assert kind == "step.committed"
        self.journaled.append(data)

    def send(self, _: object) -> None:
        """To the coordinator."""

    def step(self, *numbers: int, loss: float = 0.5) -> None:
        for number in numbers:
            self.commits.note(number, number, loss, self.plan, 0.1, 0)

    @property
    def steps(self) -> list[int]:
        return [record["step"] for record in self.journaled]


def test_the_next_rank_0_writes_all_that_the_lost_one_may_not_have_brought() -> None:
    first, second = Member(0, 60.0), Member(1, 60.0)
    for member in (first, second):
        member.step(1, 2, 3)
    assert first.steps == [1, 2, 3] and second.steps == []
    second.commits.journal_for()
    assert second.steps == [1, 2, 3]
    assert [("assignment" in record) for record in second.journaled] == [True, False, False]
    second.commits.journal_for()
    first.commits.journal_for()
    assert second.steps == [1, 2, 3] == first.steps, "each is written once by a member"


def test_where_members_share_a_store_the_last_one_is_enough() -> None:
    second = Member(1, 0.0)
    second.step(1, 2, 3)
    second.commits.journal_for()
    assert second.steps == [3]


def test_what_a_cell_has_taken_back_is_not_written() -> None:
    second = Member(1, 60.0)
    second.step(1, 2, 3, 4)
    second.step(2, loss=0.25)
    second.commits.journal_for()
    assert second.steps == [1, 2] and second.journaled[-1]["loss"] == 0.25
    second.step(3)
    second.commits.drop()
    second.commits.journal_for()
    assert second.steps == [1, 2]
