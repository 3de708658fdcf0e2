"""`python -m torch_dataloader_utils.cli` is `tdu`."""

from torch_dataloader_utils.cli import main

main()
