"""The stage that runs: it carries out the plan's worker programs, in threads of the trainer or in worker processes.

    worker program → LaneReader (decodes row groups ahead, gathers windows) → WorkerStream → batches
    threads     in the trainer's process                     loader.py
    processes   the trainer sends tickets                    processes.py, tickets.py
                a worker answers with batches in slabs       ticket_worker.py, slabs.py
                the trainer receives them                    worker_death.py, receiver.py

In: programs (`_core.program`), a reader and a shaper behind the protocols of `_core.block`. Out: batches in the plan's
order. Promises: states count the batches that the trainer received; nothing is left behind when a process ends.
"""
