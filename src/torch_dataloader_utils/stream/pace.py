"""How many batches a worker process sends in one answer.

An answer costs both sides some 300 us, whatever it carries: as much as decoding 1,024 rows of 51 columns and a light
transform together. A worker whose batches take no time sends several; one that takes long over each sends it at once.

    batches of 250 KB, 0.2 ms each      1, 2, 4, 8, 16 batches an answer (4 MB)
    batches that take 30 ms             1 batch an answer
"""

from dataclasses import dataclass

# An answer that was made in less time may carry twice as many batches; one that took longer, half as many.
_FAST_NS = 10_000_000
_SLOW_NS = 40_000_000
MOST_BYTES = 4 << 20
# If a transform becomes slow, one answer takes at most so many times as long.
_MOST_BATCHES = 16


@dataclass(slots=True)
class BatchPace:
    """Learns from the answers of one pass how many batches the next ones should carry; the first carry one."""

    length: int = 1

    def learn(self, batches: int, num_bytes: int, took_ns: int) -> None:
        """Take one answer into account: its batches, their bytes in slabs, and the time that the worker took for it.

        num_bytes: 0 if a batch cannot be put into a slab; its size is not known then.
        """
        if num_bytes == 0:
            self.length = 1
        elif took_ns > _SLOW_NS or num_bytes > MOST_BYTES:
            self.length = max(1, batches // 2)
        elif took_ns < _FAST_NS and 2 * num_bytes <= MOST_BYTES:
            self.length = min(2 * batches, _MOST_BATCHES)
        else:
            self.length = batches
