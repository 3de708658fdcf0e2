"""Text: CSV and JSON lines. `scan` cuts a file into blocks at line ends and counts rows, `decode` reads one block.

`line_counter` knows lines and blocks, and `json_schema` the columns of JSON lines: the union of the keys of all lines.
"""
