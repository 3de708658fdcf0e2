"""What runs and remembers: threads, processors, memory that is used again, results that are kept, warnings.

In: functions, items, buffers. Out: results in order, memory, and a call when nobody uses it any more.

Promises: nothing here knows of tables, files or plans. The standard library and numpy only. Not for what one stage
alone needs: that stays in its own package.
"""
