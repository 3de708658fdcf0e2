"""Small token files, and what their samples must be: documents walked token by token, in Python lists."""

import itertools
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet as pq
from hypothesis import strategies as st

from torch_dataloader_utils.samples import pack_tokens

PAD, EOD = 0, 7_000_000

# A document is its length; None is a null row. Token values are made unique when the files are written.
documents = st.lists(st.one_of(st.integers(0, 30), st.none(), st.just(0)), max_size=12)
corpora = st.lists(st.lists(documents, max_size=3), max_size=4)


@st.composite
def packings(draw, **fixed):
    """Options of `pack_tokens` for the column "tokens"."""
    multiple = draw(st.sampled_from([1, 1, 2, 4]))
    fill = draw(st.sampled_from(["greedy", "best_fit"]))
    return pack_tokens(
        "tokens",
        multiple * draw(st.integers(1, 40 // multiple)),
        eod=draw(st.sampled_from([None, EOD])),
        extra_token=draw(st.booleans()) and (multiple == 1 or fill == "greedy"),
        fill=fill,
        over_long="cut" if fill == "greedy" else draw(st.sampled_from(["cut", "truncate", "drop"])),
        counts=draw(st.sampled_from(["footers", "read"])),
        pad_to_multiple_of=multiple,
        window_tokens=draw(st.sampled_from([None, 1, 20, 60])),
        **fixed,
    )


@dataclass(frozen=True)
class Sample:
    """One sample as lists; `tokens` is as long as the field."""

    tokens: tuple
    positions: tuple
    loss_mask: tuple
    cu_seqlens: tuple


def number_tokens(lengths):
    """Corpora of lengths to corpora of tokens 1, 2, 3, ... over all files."""
    counter = itertools.count(1)
    take = lambda length: None if length is None else [next(counter) for _ in range(length)]  # noqa: E731
    return [[[take(length) for length in group] for group in groups] for groups in lengths]


def write_corpus(folder, tokens, *, value_type=None, **options):
    """One Parquet file of these row groups of documents for each entry."""
    schema = pa.schema([("tokens", pa.list_(value_type or pa.int32())), ("row", pa.int64())])
    for index, groups in enumerate(tokens):
        with pq.ParquetWriter(folder / f"part-{index:02}.parquet", schema, **options) as writer:
            for group in groups:
                columns = {"tokens": group, "row": range(len(group))}
                writer.write_table(pa.table(columns, schema=schema), row_group_size=max(1, len(group)))


def walk_group(group, packing):
    """The samples of one window as lists of (document, place in it); places go on through EOD and padding."""
    documents = kept_documents(group, packing)
    if packing.fill == "best_fit":
        return _best_fit(documents, packing)
    stream = [entry for each in documents for entry in each]
    last = max(0, len(stream) - packing.extra_token)
    return [stream[start : start + packing.sample_tokens] for start in range(0, last, packing.sequence_length)]


def pack_group(group, packing):
    """The samples of one window, in order."""
    return [_sample(entries, group, packing) for entries in walk_group(group, packing)]


def pack_corpus(tokens, packing):
    """All samples of a corpus, in stored order."""
    return [sample for window in windows(tokens, packing) for sample in pack_group(window.group, packing)]


@dataclass
class Window:
    """Row groups that are packed together: their documents, and (file, row group, row) of each document."""

    group: list
    places: list


def windows(tokens, packing):
    """The packing windows of a corpus, in stored order; row groups without tokens are in none."""
    least, found, missing = packing.least_window_tokens, [], 0
    for file, groups in enumerate(tokens):
        for ordinal, group in enumerate(groups):
            size = sum(map(len, kept_documents(group, packing)))
            if not size:
                continue
            if missing <= 0:
                found.append(Window([], []))
                missing = least
            found[-1].group += group
            found[-1].places += [(file, ordinal, row) for row in range(len(group))]
            missing -= size
    if missing > 0 and len(found) > 1:
        rest = found.pop()
        found[-1].group += rest.group
        found[-1].places += rest.places
    return found


def _documents(group, packing):
    return [
        [(number, place) for place in range(_padded(len(each) + (packing.eod is not None), packing))]
        for number, each in enumerate(group)
        if each
    ]


def kept_documents(group, packing):
    """The documents of a window that samples have, as lists of (document, place in it)."""
    documents = _documents(group, packing)
    if packing.fill == "greedy":
        return documents
    kept = [each for each in documents if len(each) <= packing.sample_tokens or packing.over_long != "drop"]
    return [each[: packing.sample_tokens] for each in kept] if packing.over_long == "truncate" else kept


def samples_of(batch):
    """The samples of a batch."""
    columns = [batch[name].tolist() for name in ("tokens", "positions", "loss_mask")]
    rows = zip(*columns, batch["cu_seqlens"].to_list(), strict=True)
    return [Sample(*(tuple(each) for each in row)) for row in rows]


def _padded(count, packing):
    return -(-count // packing.pad_to_multiple_of) * packing.pad_to_multiple_of


def _best_fit(documents, packing):
    width = packing.sample_tokens
    pieces = [each[start : start + width] for each in documents for start in range(0, len(each), width)]
    bins = []
    for piece in sorted(pieces, key=len, reverse=True):
        fitting = [one for one in bins if len(one) + len(piece) <= width]
        # The tightest; the older one on ties.
        target = max(fitting, key=len, default=None)
        if target is None:
            bins.append(list(piece))
        else:
            target.extend(piece)
    return bins


def _sample(entries, group, packing):
    length, width = packing.sequence_length, packing.sample_tokens
    owners = [document for document, _ in entries]
    is_real = [place < len(group[document]) + (packing.eod is not None) for document, place in entries]
    inputs = owners[:length]
    starts = [0, *(i for i in range(1, len(inputs)) if inputs[i] != inputs[i - 1])]
    cu_seqlens = [*starts, *([len(inputs)] if len(inputs) < length else []), length]
    positions = [place for first, stop in itertools.pairwise(cu_seqlens) for place in range(stop - first)]
    mask = [i + 1 < len(owners) and owners[i] == owners[i + 1] and is_real[i + 1] for i in range(length)]
    tokens = [
        group[document][place] if place < len(group[document]) else packing.eod if real else packing.pad_id
        for (document, place), real in zip(entries, is_real, strict=True)
    ]
    tokens += [packing.pad_id] * (width - len(entries))
    return Sample(tuple(tokens), tuple(positions), tuple(mask), tuple(cu_seqlens))
