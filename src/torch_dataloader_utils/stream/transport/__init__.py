"""Run workers outside of the trainer's process: start and end workers, and bring their batches to the trainer.

    trainer's process                                          worker process
    processes.py   request (requests.py)  ->                   worker_process.py: the worker's stream (stream/worker.py)
                   <-  response, batches in slabs (slabs.py)

                                                               actor of Ray
    ray_workers.py                        ->                   ray_actor.py: the same
                   <-  response, batches as arrays (flat_buffers.py)

Both are a `WorkerTransport` (worker_transport.py). Processes and actors make responses with responder.py, and the
trainer reads responses with receiver.py.

In: the work of each worker from the plan, a reader and a shaper. Out: the same batches, in the plan's order, as from
threads of the trainer's process. If a worker dies or cannot send a batch, an error names the worker (worker_death.py).
When the trainer ends, no worker is left that runs or holds memory.
"""
