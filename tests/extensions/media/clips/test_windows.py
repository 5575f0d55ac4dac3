"""Where clips begin, and the numbers of clips: mathematics."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from shardwise.extensions.media.clips.windows import ClipTable, ClipWindows

ROWS = st.lists(st.tuples(st.integers(1, 3), st.integers(1, 5)), max_size=12)


@given(ROWS)
def test_each_id_is_one_clip_of_one_span(rows):
    videos = np.cumsum([0, *(gap - 1 for gap, _ in rows)])[1:].tolist()
    table = ClipTable.of_rows(
        [(v, 10 * i, 10 * i + 9, i, n) for i, (v, (_, n)) in enumerate(zip(videos, rows))]  # noqa: B905
    )
    expected = [(span, k) for span, (_, n) in enumerate(rows) for k in range(n)]
    ids = np.arange(table.num_clips)
    assert len(ids) == len(expected)
    spans, numbers = table.locate(ids)
    assert list(zip(spans.tolist(), numbers.tolist(), strict=True)) == expected
    counted: dict[int, int] = {}
    for number, span in zip(table.numbers(ids, spans).tolist(), spans.tolist(), strict=True):
        assert number == counted.get(videos[span], 0)
        counted[videos[span]] = number + 1
    ends = np.array([1, 1, 5, 100])
    of_runs = [sum(counted.get(v, 0) for v in r) for r in ([0], [], range(1, 5), range(5, 100))]
    assert table.clips_by(ends).tolist() == of_runs


@given(
    st.integers(0, 500),
    st.one_of(
        st.builds(ClipWindows, step=st.integers(1, 99), jitter=st.integers(0, 200)),
        st.builds(ClipWindows, count=st.integers(1, 99), jitter=st.integers(0, 200)),
    ),
    st.integers(0, 5),
)
def test_clips_begin_where_a_whole_one_fits_also_when_moved(num_starts, windows, epoch):
    starts = [windows.start(num_starts, i) for i in range(windows.num_clips(num_starts))]
    assert starts == sorted(starts)
    if windows.step is None:
        assert len(starts) == (windows.count if num_starts else 0)
    else:
        assert starts == list(range(0, num_starts, windows.step))
    for clip, start in enumerate(starts):
        moved = windows.moved(start, num_starts, seed=1, epoch=epoch, clip=clip)
        assert start <= moved < min(num_starts, start + max(1, windows.jitter))


def test_every_jitter_is_drawn():
    windows = ClipWindows(step=8, jitter=8)
    drawn = [windows.moved(0, 100, seed=0, epoch=0, clip=clip) for clip in range(800)]
    assert np.bincount(drawn, minlength=8).min() > 60
