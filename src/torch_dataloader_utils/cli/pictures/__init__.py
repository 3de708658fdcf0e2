"""Pictures of plans: who reads what, when, with cuts and imbalance.

    timeline.py   a plan as bars, pure arithmetic
    svg.py        the bars as SVG          html.py   a page around it, one file, no scripts

"When" is bytes read: a plan has no clock, and a worker's time is close to proportional to the bytes it decodes.
"""
