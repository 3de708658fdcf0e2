"""The rule and the stop policies, one pick after the other, in plain Python."""


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
