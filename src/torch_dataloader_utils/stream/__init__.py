"""The stage that runs: programs of workers become batches, in threads of the trainer or in processes.

    program → LaneReader (blocks decoded ahead, windows gathered) → WorkerStream → batches
    threads     in the trainer's process      loader.py
    processes   tickets out, slabs in         processes.py, tickets.py, run.py, slabs.py, slab_memory.py, receiver.py

Takes what `_core.program` describes; reads and shapes through the protocols of `_core.block`. Promises the order of the
plan, states that count what the trainer received, and nothing left behind when a process ends.
"""
