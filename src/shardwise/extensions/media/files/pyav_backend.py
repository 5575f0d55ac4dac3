"""Decoding by PyAV: coded frames straight into one codec context, and each picture into its row.

It takes 0.17 CPU-seconds and 34 MB to import, and no torch. PyAV takes the GIL back between frames,
so it belongs into worker processes.
"""

from __future__ import annotations

from functools import partial

from shardwise.base.counters import spent_in
from shardwise.base.errors import DataError
from shardwise.extensions.media.files.coded_run import CodedRun
from shardwise.extensions.media.files.pyav_import import import_av
from shardwise.extensions.media.files.pyav_packets import NotAKeyFrameError, damaged, decoded_frames


def decode_with_pyav(run: CodedRun) -> None:
    """Decode a run; a `VideoBackend`."""
    track, segment, form = run.track, run.segment, run.form
    reformatter = import_av("video").video.reformatter
    # Its filters take 0.1 ms to make for another size: one for all frames.
    to_rgb = partial(
        reformatter.VideoReformatter().reformat,
        height=form.scaled[0],
        width=form.scaled[1],
        format=form.pixel_format,
        interpolation=reformatter.Interpolation.BILINEAR,
        threads=1,
    )
    pending = set(segment.wanted.tolist())
    samples = zip(segment.samples.tolist(), run.payloads, strict=True)
    decoded = decoded_frames(
        track, samples, run.limits, may_fail=segment.may_fail, wanted=frozenset(pending)
    )
    begin = int(segment.samples[0])
    for number, frame in decoded:
        # Nor is a recovery point of H.264 a key frame; nothing lies before the file's first frame.
        if number == begin > 0 and track.codec != "h264" and not frame.key_frame:
            raise NotAKeyFrameError(f"{track.codec}: coded frame {number} is no key frame")
        if number not in pending:
            continue
        if frame.is_corrupt:
            raise damaged(track, number, "the decoder calls the picture damaged")
        pending.remove(number)
        with spent_in("convert"):
            run.place(number, to_rgb(frame).to_ndarray())
        if not pending:
            return
    first = min(pending)
    offset = int(track.columns.offset[first])
    raise DataError(
        f"{track.codec}: the decoder gave no picture for {len(pending)} of "
        f"{len(segment.wanted)} frames, the first of them coded frame {first}",
        offset=offset if offset >= 0 else None,
    )
