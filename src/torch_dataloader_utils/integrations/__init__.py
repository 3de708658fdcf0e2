"""Extras for trainers, one module for each trainer; import only the module that you need.

    accelerate.py     `prepare`: `Accelerator.prepare`, with gathering of batches that differ in size between ranks
    grain.py          `for_grain`: a data set as an IterDataset of Grain, with Grain's checkpoints
    lightning.py      `TableDataModule`: builds loaders when the ranks are known
    torchdata.py      `for_torchdata`: a data set with the states that a StatefulDataLoader needs
    torchrec.py       `to_keyed_jagged_tensor`: the sparse features of a batch as a KeyedJaggedTensor
    transformers.py   `LoaderStateCallback`: the loader's position in the Trainer's checkpoints, resumed without replay

A loader works in all trainers without these modules: it is sharded already, and nothing shards it again. Ranks come
from `num_ranks="auto"` or `mesh=`. Plain PyTorch, Ray Train and torch.distributed.checkpoint need no module from here;
see the page on trainers.
"""
