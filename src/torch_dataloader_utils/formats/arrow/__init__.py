"""Arrow IPC files and streams: `messages` reads heads of messages, `scan` finds blocks, `decode` reads one block."""
