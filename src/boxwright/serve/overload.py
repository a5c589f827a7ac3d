"""Whether a request may wait: the queue is bounded by the time that the last one in it would wait."""

from boxwright.core.errors import BoxwrightError

_WINDOW_S = 0.04
_WINDOWS = 2  # in a row with too many arrivals; many clients that begin at once fill one
_LONG = 0.25  # of the longest wait: a shorter queue is not an overload
_MORE = 1.3  # arrivals for each answer that count as too many
_CALM_S = 1.0  # without too many arrivals; after less, a long queue would grow again at once
_SMOOTH = 0.1


class Overloaded(BoxwrightError):
    """The server has more to do than it can."""

    def __init__(self, text: str, retry_after_s: float) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Admission:
    """Estimates waiting times from the answers so far, and notices when more arrives than can be answered.

    As long as clients wait for their answers before they ask again, a queue of `max_wait_s` makes bursts even. When
    more requests arrive than can be answered, a long queue helps nobody: every request would wait for all of it.
    Then only so many may wait that no worker is idle.

    Example:
        >>> admission = Admission(parallel=2, max_wait_s=1.0)
        >>> admission.answered(0.010, now=0.0)
        >>> admission.wait_s(10), admission.may_wait(10), admission.may_wait(1000)
        (0.05, True, False)
    """

    def __init__(self, *, parallel: int, max_wait_s: float) -> None:
        self._parallel = parallel
        self._max_wait_s = max_wait_s
        self._service_s = 0.0
        self._window_end = 0.0
        self._arrived = self._answered = 0
        self._was_busy = False
        self._waiting = 0  # at the last arrival
        self._excesses = 0  # windows in a row with too many arrivals
        self._last_excess = 0.0
        self.overloaded = False

    @property
    def limit_s(self) -> float:
        """How long a request may wait now."""
        return min(self._max_wait_s, self._service_s / 2) if self.overloaded else self._max_wait_s

    def arrived(self, now: float, waiting: int) -> None:
        """Count a request, also one that is then refused; `waiting`: others that wait, below 0 for idle workers."""
        if now >= self._window_end:
            self._roll(now, busy=waiting >= 0)
        self._arrived += 1
        self._waiting = waiting
        self._was_busy = self._was_busy and waiting >= 0

    def answered(self, service_s: float, now: float) -> None:
        """Count an answer and the time that a worker needed for it."""
        if now >= self._window_end:
            self._roll(now, busy=self._was_busy)
        self._answered += 1
        self._service_s += (service_s - self._service_s) * (_SMOOTH if self._service_s else 1.0)

    def wait_s(self, waiting: int) -> float:
        """Return how long a request waits behind as many others."""
        return waiting * self._service_s / self._parallel

    def may_wait(self, waiting: int) -> bool:
        """Return whether one more request may wait behind as many others."""
        return waiting < self._parallel or self.wait_s(waiting) <= self.limit_s

    def _roll(self, now: float, *, busy: bool) -> None:
        length_s = max(_WINDOW_S, 2 * self._service_s)
        is_pause = now >= self._window_end + length_s
        may_be_excess = (self.overloaded or self._was_busy) and not is_pause
        if may_be_excess and self._arrived > _MORE * self._answered + self._parallel:
            self._last_excess = now
            self._excesses += self.wait_s(self._waiting) > _LONG * self._max_wait_s
        else:
            self._excesses = 0
        if self.overloaded:
            self.overloaded = now - self._last_excess < _CALM_S
        else:
            self.overloaded = self._excesses >= _WINDOWS
        self._window_end = now + length_s
        self._arrived = self._answered = 0
        self._was_busy = busy
