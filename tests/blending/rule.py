"""The rule and the stop policies, one pick after the other, in plain Python."""

from fractions import Fraction


def pick(shares, counts):
    """The source that is furthest behind its share; the first one on ties."""
    step = max(sum(counts), 1)
    errors = [share * step - count for share, count in zip(shares, counts, strict=True)]
    return errors.index(max(errors))


def blend_picks(weights, lengths, stop, rows=1):
    """All picks of an epoch; `lengths` are items of every source's pass."""
    shares = [weight / sum(weights) for weight in weights]
    counts, picks = [0] * len(weights), []
    while True:
        if isinstance(stop, int) and len(picks) == stop * rows:
            return picks
        if stop == "all_exhausted" and len(picks) % rows == 0 and all(map(int.__ge__, counts, lengths)):
            return picks
        source = pick(shares, counts)
        if stop == "first_exhausted" and counts[source] == lengths[source]:
            return picks
        counts[source] += 1
        picks.append(source)


def exact_shares(nodes, linear, step, without=()):
    """Shares at a step (a Fraction) of weights by step, in fractions; None if all sources that are left have 0."""
    steps = sorted(nodes)
    index = max(number for number, each in enumerate(steps) if each <= step)
    ends = [_shares(nodes[steps[index]], without)]
    if linear and index + 1 < len(steps):
        first, last = steps[index : index + 2]
        ends.append(_shares(nodes[steps[index + 1]], without))
        ends = [ends[0] or ends[1], ends[1] or ends[0]]
        if ends[0] is not None:
            part = Fraction(step - first) / (last - first)
            return [a + (b - a) * part for a, b in zip(*ends, strict=True)]
    return ends[0]


def _shares(weights, without):
    left = [Fraction(0) if source in without else Fraction(weight) for source, weight in enumerate(weights)]
    return [weight / sum(left) for weight in left] if any(left) else None


def exact_targets(nodes, linear, rows, capped, count):
    """What each source should have given after each number of items up to `count`: the integral of the shares."""
    targets, sums = [], [Fraction(0)] * len(nodes[0])
    for made in range(count + 1):
        targets.append(list(sums))
        without = [source for source, items in capped if items <= made]
        # A straight line over an item, on which no border lies, is its middle; jumps are only at whole items.
        shares = exact_shares(nodes, linear, Fraction(2 * made + 1, 2 * rows), without)
        if shares is None:
            return targets
        sums = [total + share for total, share in zip(sums, shares, strict=True)]
    return targets
