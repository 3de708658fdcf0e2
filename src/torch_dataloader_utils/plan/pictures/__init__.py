"""Draw plans: the row groups that each worker reads, when, with cuts and imbalance.

    timeline.py   a plan as bars, pure arithmetic
    svg.py        the bars as SVG, for files, pages and notebooks

"When" is bytes read: a plan has no clock, and a worker's time is close to proportional to the bytes it decodes.
"""
