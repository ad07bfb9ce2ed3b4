"""Measure how fast the processor reads memory, the limit of a library that reads its weights."""

from __future__ import annotations

from time import perf_counter

REPEATS = 12
LEAST_BYTES = 1 << 20


class MemoryReader:
    """Reader of a block of floats, with the thread count of the libraries."""

    def measure(self, nbytes: int, threads: int) -> dict[str, float]:
        """Return the most bytes a second that a sum, or a product with a vector, has read.

        Args:
            nbytes: Size of the block; a block that fits into a cache is read faster.
            threads: Compute threads.
        """
        import torch

        torch.set_num_threads(threads)
        columns = 1024
        rows = max(nbytes, LEAST_BYTES) // 4 // columns
        block = torch.ones(rows, columns, dtype=torch.float32, device="cpu")
        vector, result = (
            torch.ones(columns, dtype=torch.float32, device="cpu"),
            torch.empty(rows, dtype=torch.float32, device="cpu"),
        )
        seconds = []
        for _ in range(REPEATS):
            start = perf_counter()
            block.sum()
            middle = perf_counter()
            torch.mv(block, vector, out=result)
            seconds += [middle - start, perf_counter() - middle]
        return {"bytes_per_second": block.numel() * 4 / min(seconds)}
