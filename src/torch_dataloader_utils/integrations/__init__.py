"""Extras for trainers, a module for each; users import the one they need.

accelerate.py     `prepare`: as `Accelerator.prepare`, and gathering of batches that differ in size between ranks
grain.py          `for_grain`: a data set as an IterDataset of Grain, with its checkpoints
lightning.py      `TableDataModule`: builds loaders when the ranks are known
torchdata.py      `for_torchdata`: a data set with the states that a StatefulDataLoader needs
torchrec.py       `to_keyed_jagged_tensor`: the sparse features of a batch as TorchRec takes them
transformers.py   `LoaderStateCallback`: the loader's place in the Trainer's checkpoints, resumed without replay

A loader of this package works in all trainers without these: it is sharded already, and nothing shards it again. Ranks
come from `num_ranks="auto"` or `mesh=`. Plain PyTorch, Ray Train and torch.distributed.checkpoint need nothing from
here; see the page on trainers.
"""
