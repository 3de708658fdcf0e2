"""`make demo`: write a data set, print its plan, train on it with two processes, audit what they received.

data.py    writes .demo/trips: Parquet files of uneven sizes in hive directories, and the same rows as ORC
train.py   one rank of the training, started twice by torchrun; notes the row ids of every batch
table.py   the same rows as an Iceberg table in an embedded catalog, now and before a deletion
audit.py   every row id once an epoch over all ranks, equal steps, falling loss
"""
