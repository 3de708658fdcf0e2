"""Arrow IPC files and streams: `messages` reads the heads of messages, `scan` finds the blocks, `decode` reads one."""
