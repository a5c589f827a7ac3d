"""When the server says that it has more to do than it can."""

import random
from collections.abc import Callable

import pytest

from boxwright.serve.overload import Admission

SERVICE_S = 0.025
PARALLEL = 2


class Queue:
    """Requests and workers on a clock of their own, in steps of a millisecond."""

    def __init__(self, max_wait_s: float = 1.0) -> None:
        self.admission = Admission(parallel=PARALLEL, max_wait_s=max_wait_s)
        self.admission.answered(SERVICE_S, 0.0)
        self.now = 1.0
        self.waiting = self.refused = self.answered = 0
        self.was_overloaded = False
        self._ends: list[float] = []

    def offer(self) -> bool:
        """Offer a request and return whether it is accepted."""
        waiting = self.waiting + len(self._ends) - PARALLEL
        self.admission.arrived(self.now, waiting)
        self.was_overloaded = self.was_overloaded or self.admission.overloaded
        if waiting >= 0 and not self.admission.may_wait(waiting):
            self.refused += 1
            return False
        self.waiting += 1
        self._begin()
        return True

    def step(self) -> int:
        """Let a millisecond pass and return how many requests were answered."""
        self.now += 0.001
        done = [end for end in self._ends if end <= self.now]
        self._ends = [end for end in self._ends if end > self.now]
        for _ in done:
            self.admission.answered(SERVICE_S, self.now)
        self.answered += len(done)
        self._begin()
        return len(done)

    def run(self, steps: int, arrivals: Callable[[int], int]) -> None:
        """Offer so many requests in each of these milliseconds."""
        for number in range(steps):
            for _ in range(arrivals(number)):
                self.offer()
            self.step()

    def _begin(self) -> None:
        while self.waiting and len(self._ends) < PARALLEL:
            self.waiting -= 1
            self._ends.append(self.now + SERVICE_S)


@pytest.mark.parametrize("clients", [1, 3, 8, 64])
def test_clients_that_wait_for_their_answers_are_never_refused(clients: int) -> None:
    queue = Queue()
    free = clients
    for _ in range(2000):
        while free and queue.offer():
            free -= 1
        free += queue.step()
    assert queue.refused == 0
    assert not queue.was_overloaded
    assert queue.answered >= 75 * min(clients, PARALLEL) / PARALLEL


def test_a_burst_that_the_longest_wait_allows_is_accepted() -> None:
    queue = Queue()
    queue.run(2000, lambda number: 70 * (number == 100))
    assert (queue.refused, queue.answered) == (0, 70)


def test_four_times_too_many_requests_soon_wait_no_longer() -> None:
    queue = Queue()
    queue.run(1500, lambda number: int(number % 3 == 0))
    assert queue.admission.overloaded
    before = queue.answered
    for number in range(2000):
        if number % 3 == 0:
            queue.offer()
        queue.step()
        assert queue.waiting <= PARALLEL
    assert queue.answered - before >= 150  # of the 160 that two workers can do


def test_it_ends_when_the_requests_become_fewer() -> None:
    queue = Queue()
    queue.run(1000, lambda number: int(number % 3 == 0))
    assert queue.admission.overloaded
    refused = queue.refused
    queue.run(1500, lambda number: int(number % 20 == 0))
    assert not queue.admission.overloaded
    assert queue.refused - refused < 10


def test_a_queue_beyond_the_longest_wait_is_refused_also_without_an_excess() -> None:
    queue = Queue(max_wait_s=0.1)
    queue.run(3000, lambda number: int(number % 11 == 0))  # 91 a second, where 80 can be answered
    assert 0 < queue.refused < 60
    assert queue.admission.wait_s(queue.waiting) <= 0.1 + SERVICE_S


def test_a_moment_without_requests_does_not_end_an_overload() -> None:
    queue = Queue()
    chance = random.Random(0)
    queue.run(2000, lambda _: chance.random() < 0.32)
    assert queue.admission.overloaded
    for second in range(30):
        queue.run(970, lambda _: chance.random() < 0.32)
        queue.run(30, lambda _: 0)
        assert queue.admission.overloaded, second
        assert queue.waiting <= PARALLEL
