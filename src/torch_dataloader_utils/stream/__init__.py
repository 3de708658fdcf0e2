"""The stage that runs: it carries out the plan's worker programs, in threads of the trainer or in worker processes.

    plan → worker stream → batch → count → give              epoch_pass.py tells one pass in this order
    plan        where a pass begins                          progress.py
    stream      rows of lanes, decoded ahead, as batches     worker.py, lane.py, decode.py
                in threads of the trainer's process, or in worker processes: transport/
    around it   the data set and the loader of torch         dataset.py, loader.py

In: programs (`_core.program`), a reader and a shaper behind the protocols of `_core.block`. Out: batches in the plan's
order. Promises: states count the batches that the trainer received; nothing is left behind when a process ends.
"""
