"""The table of metrics for monitoring systems, shared by all exporters."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Instrument:
    """One figure of a loader, as monitoring systems know it.

    name: without the unit. unit: "s", "By" or "" (UCUM, as OpenTelemetry wants). attribute: the one of Metrics.
    """

    name: str
    attribute: str
    unit: str
    help: str
    only_grows: bool = True


INSTRUMENTS = (
    Instrument(name="batches", attribute="batches", unit="", help="Batches received by the trainer."),
    Instrument(name="rows", attribute="rows", unit="", help="Rows received by the trainer."),
    Instrument(
        name="padding_rows", attribute="padding_rows", unit="", help="Rows repeated so that all ranks take equal steps."
    ),
    Instrument(name="passes", attribute="passes", unit="", help="Passes that reached their last batch."),
    Instrument(name="row_groups", attribute="row_groups", unit="", help="Row groups decoded."),
    Instrument(name="decoded", attribute="decoded_bytes", unit="By", help="Memory of decoded rows."),
    Instrument(name="fetched", attribute="fetched_bytes", unit="By", help="Bytes received from remote storage."),
    Instrument(name="requests", attribute="requests", unit="", help="Requests to remote storage."),
    Instrument(name="retries", attribute="retries", unit="", help="Requests sent again after a failure."),
    Instrument(name="fetch", attribute="fetch_seconds", unit="s", help="Time of waiting for remote storage."),
    Instrument(name="decode", attribute="decode_seconds", unit="s", help="Time of decoding, without fetching."),
    Instrument(name="stall", attribute="stall_seconds", unit="s", help="Time of waiting for decoded row groups."),
    Instrument(name="transform", attribute="transform_seconds", unit="s", help="Time in transform and collate_fn."),
    Instrument(name="handover", attribute="handover_seconds", unit="s", help="Time of cutting and copying batches."),
    Instrument(name="wait", attribute="wait_seconds", unit="s", help="Time the trainer waited in next()."),
    Instrument(name="pass", attribute="seconds", unit="s", help="Time in passes, training included."),
    Instrument(
        name="queue_depth",
        attribute="queue_depth",
        unit="",
        help="Row groups decoded and not used up.",
        only_grows=False,
    ),
)
