"""The last few values by key, as footers and plans are kept."""

from itertools import count

import pytest

from tests.interleaved import between_calls_in
from torch_dataloader_utils._runtime import recent
from torch_dataloader_utils._runtime.recent import Recent


def test_the_oldest_goes_first() -> None:
    kept: Recent[int, str] = Recent(most=2)
    assert [kept.keep(key, str(key)) for key in (1, 2, 1, 3)] == ["1", "2", "1", "3"]
    assert (kept.find(1), list(kept._entries.values())) == (None, ["2", "3"])
    assert kept.keep(3, "another") == "3"


def test_what_is_asked_for_again_is_not_computed_again_and_is_the_youngest() -> None:
    computed: list[int] = []
    kept: Recent[int, str] = Recent(most=2)
    for key in (1, 2, 1, 3, 1, 2):
        assert kept.get(key, lambda key: computed.append(key) or str(key)) == str(key)
    assert computed == [1, 2, 3, 2]


@pytest.mark.parametrize("moment", range(12))
@pytest.mark.parametrize("method", ["keep", "get"])
def test_another_thread_may_come_in_at_any_moment(method: str, moment: int) -> None:
    kept: Recent[int, str] = Recent(most=2)
    moments = count()

    def use(key: int) -> str:
        return kept.keep(key, str(key)) if method == "keep" else kept.get(key, str)

    def come_in() -> None:
        if next(moments) == moment:
            for key in (10, 11, 12):
                use(key)

    with between_calls_in(recent, come_in):
        assert [use(key) for key in range(8)] == [str(key) for key in range(8)]
    assert next(moments) > moment
    assert len(kept._entries) == 2
