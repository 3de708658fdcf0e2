"""First-fit in the original order: the baseline that balanced schedules never fall behind."""

from torch_dataloader_utils.packing.plan.schedule import Int64s


def first_fit(lengths: Int64s, positions: Int64s, *, capacity: int) -> list[list[int]]:
    """Packs of `positions` in order, each in the first pack that has room; one too long is alone.

    A tournament tree over the packs, every node with the most room below it, finds that pack in log n.

        lengths 5 4 3 6 2, capacity 8       5 3 | 4 2 | 6
    """
    # First-fit leaves at most one pack half empty, so twice the tokens bound the packs; over-long ones add theirs.
    listed = lengths[positions].tolist()
    total = sum(min(length, capacity) for length in listed)
    leaves = 1 << (2 * total // capacity + 1).bit_length()
    rooms = [capacity] * (2 * leaves)
    packs: list[list[int]] = []
    for position, length in zip(positions.tolist(), listed, strict=True):
        wanted = min(length, capacity)
        node = 1
        while node < leaves:
            node *= 2
            if rooms[node] < wanted:
                node += 1
        if node - leaves == len(packs):
            packs.append([])
        packs[node - leaves].append(position)
        rooms[node] -= wanted
        while node > 1:
            node //= 2
            left, right = rooms[2 * node], rooms[2 * node + 1]
            most = left if left >= right else right  # max() takes twice as long
            if most == rooms[node]:
                break
            rooms[node] = most
    return packs
