"""Run the plan's worker programs, in threads of the trainer's process or in worker processes, and give batches.

    plan → worker stream → batch → count → give              epoch_pass.py runs one pass in this order
    plan        where a pass begins                          progress.py
    stream      rows of lanes, decoded ahead, as batches     worker.py, lane.py, mixed_lanes.py, decode.py
                in threads of the trainer's process, or in worker processes: transport/
    around      the data set and the loader of torch         dataset.py, loader.py

In: programs (`_core.program`), a reader and a shaper (protocols in `_core.block`). Out: batches in the plan's order.
Promises: states count the batches that the trainer received; nothing is left behind when a process ends.
"""
