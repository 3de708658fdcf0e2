"""Workers outside of the trainer's process: how they start and end, and how their batches come to it.

    trainer's process                                          worker process
    processes.py   request (requests.py)  ->                   worker_process.py: the worker's stream (stream/worker.py)
                   <-  response, batches in slabs (slabs.py)

                                                               actor of Ray
    ray_workers.py                        ->                   ray_actor.py: the same
                   <-  response, batches as arrays (flat_buffers.py)

Both make their responses by responder.py, and the trainer reads them by receiver.py.

In: the work of each worker, as the plan gives it, and what reads and shapes it. Out: the same batches, in the plan's
order, as the threads of the trainer's process would give them. A worker that dies, or cannot send a batch, is an error
that names it (worker_death.py); none is left to run or to hold memory when the trainer ends.
"""
