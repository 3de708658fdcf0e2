"""How much of the end of a file is read for what lies there, before it is known how long that is."""

TAIL_BYTES = 64 << 10
"""Holds the footer of most files; pyarrow reads as much.

Parquet: 26 KB for 50 columns and 4 row groups, 592 KB for 500 and 10. ORC: its reader wants the last 16 KiB, and
stripes cost about 20 bytes each.
"""
