"""A family of video files: codecs, containers, groups of pictures, colours, pixels, edits, times.

FFmpeg makes it by one command for what is encoded and one for what is copied from that: a process
for each file would take longer than all of their pictures.
"""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

SIZE, RATE, SECONDS = "80x64", 25, 1.6
_SOURCE = f"testsrc2=s={SIZE}:r={RATE}:d={SECONDS},noise=alls=12:allf=t"
_SOUND = f"sine=f=440:d={SECONDS}:r=48000"

H264 = "-c:v libx264 -preset veryfast -crf 24 -sc_threshold 0 -pix_fmt yuv420p "
HEVC = "-c:v libx265 -preset ultrafast -crf 24 -pix_fmt yuv420p "
VP9 = "-c:v libvpx-vp9 -crf 35 -b:v 0 -deadline realtime -cpu-used 8 "
AAC = " -map 1:a -c:a aac -b:a 64k"
_VFR = r"select=not(mod(n\,5))+gt(mod(n\,17)\,9)"


def _x265(options: str) -> str:
    return HEVC + f"-x265-params log-level=none:{options} "


# Name of the file -> options of its encoder; all from the same pictures.
ENCODED: dict[str, str] = {
    # H.264: profiles, and structures of groups of pictures.
    "h264_baseline.mp4": H264 + "-profile:v baseline -g 12",
    "h264_high.mp4": H264 + "-g 12 -bf 3" + AAC,
    "h264_cavlc.mp4": H264 + "-coder 0 -g 12 -bf 2",
    "h264_pyramid.mp4": H264 + "-g 20 -bf 7 -b_strategy 0 -x264-params b-pyramid=normal:ref=6",
    "h264_10.mp4": H264 + "-pix_fmt yuv420p10le -g 12 -bf 3",
    "h264_422.mp4": H264 + "-pix_fmt yuv422p -g 12 -bf 3",
    "h264_422_10.mkv": H264 + "-pix_fmt yuv422p10le -g 12 -bf 3",
    "h264_444.mp4": H264 + "-pix_fmt yuv444p -g 12 -bf 3",
    "h264_lossless.mp4": "-c:v libx264 -qp 0 -preset veryfast -g 12",
    "h264_rgb.mp4": "-c:v libx264rgb -preset veryfast -crf 20 -g 12",
    "h264_gray.mp4": H264 + "-pix_fmt gray -g 12 -bf 2",
    "h264_open.mp4": H264 + "-g 10 -bf 3 -b_strategy 0 -x264-params open-gop=1" + AAC,
    "h264_open_late.mp4": H264 + "-g 10 -x264-params open-gop=1:bframes=2:ref=4",
    "h264_open_bluray.mkv": H264
    + "-g 10 -bf 3 -b_strategy 0 -x264-params open-gop=1:bluray-compat=1",
    "h264_open.ts": H264 + "-g 10 -bf 3 -b_strategy 0 -x264-params open-gop=1",
    "h264_refresh.mp4": H264 + "-g 12 -bf 0 -x264-params intra-refresh=1",
    "h264_refresh_b.mp4": H264 + "-g 12 -bf 2 -x264-params intra-refresh=1",
    "h264_tff.mp4": H264 + "-flags +ilme+ildct -x264-params tff=1 -g 12 -bf 2",
    "h264_bff.ts": H264 + "-flags +ilme+ildct -x264-params bff=1 -g 12 -bf 2" + AAC,
    "h264_fake_interlaced.mp4": H264 + "-x264-params fake-interlaced=1 -g 12",
    "h264_slices.mp4": H264 + "-x264-params slices=4 -g 12 -bf 2",
    "h264_aud.ts": H264 + "-x264-params aud=1 -g 12 -bf 2" + AAC,
    "h264_weighted.mp4": H264 + "-x264-params weightp=2:ref=8 -bf 3 -g 25",
    "h264_one_group.mp4": H264 + "-g 9999 -bf 3",
    "h264_all_keys.mp4": H264 + "-g 1",
    "h264_no_delay.mp4": H264 + "-tune zerolatency -g 15",
    "h264_adaptive.mp4": H264 + "-x264-params b-adapt=2:bframes=16:b-pyramid=normal -g 40",
    "h264_repeated_headers.mkv": H264 + "-x264-params repeat-headers=1 -g 12 -bf 2",
    "h264.avi": H264 + "-g 12 -bf 2",
    "h264_no_b.avi": H264 + "-g 12 -bf 0 -map 1:a -c:a libmp3lame",
    "h264_open.avi": H264 + "-g 10 -bf 3 -b_strategy 0 -x264-params open-gop=1",
    "h264.flv": H264 + "-g 12 -bf 2" + AAC,
    "h264.h264": H264 + "-g 12 -bf 2",
    # HEVC, AV1, VP8, VP9.
    "hevc_closed.mp4": _x265("keyint=12:open-gop=0") + "-tag:v hvc1" + AAC,
    "hevc_open.mp4": _x265("keyint=10:min-keyint=10:bframes=4:open-gop=1") + "-tag:v hvc1",
    "hevc_hev1.mp4": _x265("keyint=10:bframes=4:repeat-headers=1") + "-tag:v hev1",
    "hevc_10.mkv": _x265("keyint=12") + "-pix_fmt yuv420p10le",
    "hevc_444_12.mp4": _x265("keyint=12") + "-pix_fmt yuv444p12le",
    "hevc_fields.mp4": _x265("interlace=tff:keyint=12"),
    "hevc_refresh.mp4": _x265("intra-refresh=1:keyint=12"),
    "hevc_hash.mp4": _x265("hash=1:keyint=12"),
    "hevc.ts": _x265("keyint=12:bframes=3") + AAC,
    "hevc.mkv": _x265("keyint=12:bframes=3:open-gop=1"),
    "hevc.hevc": _x265("keyint=12:bframes=3"),
    "av1_svt.mp4": "-c:v libsvtav1 -preset 12 -crf 40 -g 15 -pix_fmt yuv420p",
    "av1_svt.mkv": "-c:v libsvtav1 -preset 12 -crf 40 -g 15 -pix_fmt yuv420p",
    "av1_altref.mp4": "-c:v libaom-av1 -cpu-used 8 -crf 40 -b:v 0 -g 15 -lag-in-frames 19 "
    "-pix_fmt yuv420p",
    "vp8.webm": "-c:v libvpx -b:v 300k -g 15 -auto-alt-ref 0 -deadline realtime",
    "vp8_altref.webm": "-c:v libvpx -b:v 300k -g 20 -auto-alt-ref 1 -lag-in-frames 16 "
    "-deadline good -cpu-used 5 -arnr-maxframes 5 -map 1:a -c:a libvorbis",
    "vp8_alpha.webm": "-vf format=rgba,colorchannelmixer=aa=0.5,format=yuva420p "
    "-c:v libvpx -b:v 300k -g 15 -auto-alt-ref 0 -deadline realtime",
    "vp8.mkv": "-c:v libvpx -b:v 300k -g 15 -deadline realtime",
    "vp9.webm": VP9 + "-g 15 -map 1:a -c:a libopus",
    "vp9_altref.webm": "-c:v libvpx-vp9 -crf 35 -b:v 0 -g 30 -auto-alt-ref 1 -lag-in-frames 25 "
    "-deadline good -cpu-used 5",
    "vp9_altref.mp4": "-c:v libvpx-vp9 -crf 35 -b:v 0 -g 30 -auto-alt-ref 1 -lag-in-frames 25 "
    "-deadline good -cpu-used 5",
    "vp9_444_10.mkv": VP9 + "-pix_fmt yuv444p10le -g 15",
    "vp9.ivf": VP9 + "-g 15",
    "vp9_odd.webm": "-vf scale=33:17 " + VP9 + "-g 10",
    # Codecs before H.264.
    "mpeg1.mpg": "-c:v mpeg1video -b:v 600k -g 10 -bf 2 -map 1:a -c:a mp2",
    "mpeg1.avi": "-c:v mpeg1video -b:v 600k -g 10 -bf 0",
    "mpeg2.mpg": "-c:v mpeg2video -b:v 600k -g 10 -bf 2 -map 1:a -c:a mp2",
    "mpeg2.vob": "-c:v mpeg2video -b:v 600k -g 10 -bf 2 -map 1:a -c:a ac3 -f vob",
    "mpeg2.mkv": "-c:v mpeg2video -b:v 600k -g 10 -bf 2",
    "mpeg2.ts": "-c:v mpeg2video -b:v 600k -g 10 -bf 2",
    "mpeg2.mp4": "-c:v mpeg2video -b:v 600k -g 10 -bf 2",
    "mpeg2.avi": "-c:v mpeg2video -b:v 600k -g 10 -bf 2",
    "mpeg2_422.mov": "-c:v mpeg2video -pix_fmt yuv422p -b:v 2M -g 10 -bf 2",
    "mpeg2_422.mxf": "-c:v mpeg2video -pix_fmt yuv422p -b:v 2M -g 10 -bf 2",
    "mpeg4.avi": "-c:v mpeg4 -b:v 500k -g 12 -bf 0 -map 1:a -c:a libmp3lame",
    "mpeg4_b.avi": "-c:v mpeg4 -b:v 500k -g 12 -bf 2",
    "mpeg4.mp4": "-c:v mpeg4 -b:v 500k -g 12 -bf 2" + AAC,
    "mpeg4.mkv": "-c:v mpeg4 -b:v 500k -g 12 -bf 2",
    "mpeg4.3gp": "-c:v mpeg4 -b:v 500k -g 12 -bf 0",
    "mpeg4_qpel.mp4": "-c:v mpeg4 -q:v 4 -flags +qpel -g 12 -bf 2",
    "mpeg4_qpel.avi": "-c:v mpeg4 -q:v 4 -flags +qpel -g 12 -bf 2",
    "xvid_packed.avi": "-c:v libxvid -q:v 4 -g 12 -bf 2",
    "xvid_packed_one.avi": "-c:v libxvid -q:v 4 -g 10 -bf 1",
    "xvid_packed_small.avi": "-vf setsar=1,lutyuv=y=64 -c:v libxvid -q:v 8 -g 12 -bf 2",
    "xvid_no_b.avi": "-c:v libxvid -q:v 4 -g 12 -bf 0",
    "xvid_times.mkv": "-c:v libxvid -q:v 4 -g 12 -bf 2",
    "h261.avi": "-vf scale=176:144 -c:v h261 -q:v 6",
    "h263.3gp": "-vf scale=176:144 -c:v h263 -b:v 300k",
    "h263p.avi": "-c:v h263p -b:v 300k",
    "flv1.flv": "-c:v flv -b:v 400k -g 12 -map 1:a -c:a libmp3lame -ar 44100",
    "wmv1.wmv": "-c:v wmv1 -b:v 400k -g 12 -f asf",
    "wmv2.wmv": "-c:v wmv2 -b:v 400k -g 12 -f asf",
    "wmv2.avi": "-c:v wmv2 -b:v 400k -g 12",
    "msmpeg4v2.avi": "-c:v msmpeg4v2 -b:v 400k -g 12",
    "msmpeg4.avi": "-c:v msmpeg4 -b:v 400k -g 12",
    "theora.ogv": "-c:v libtheora -b:v 400k -g 15 -map 1:a -c:a libvorbis",
    "rv10.rm": "-c:v rv10 -b:v 300k -g 12",
    "svq1.mov": "-c:v svq1 -g 12",
    "snow.avi": "-c:v snow -q:v 4 -g 12 -strict experimental",
    "cinepak.mov": "-t 0.4 -c:v cinepak",
    "msvideo1.avi": "-c:v msvideo1 -pix_fmt rgb555le",
    "asv1.avi": "-c:v asv1 -q:v 4",
    "asv2.avi": "-c:v asv2 -q:v 4",
    "vc2.mkv": "-c:v vc2",
    "h264_tff.avi": H264 + "-flags +ilme+ildct -x264-params tff=1 -g 12 -bf 2",
    "mpeg2_fields.avi": "-c:v mpeg2video -flags +ilme+ildct -b:v 1M -g 12 -bf 2",
    "speedhq.nut": "-c:v speedhq -q:v 4",
    "zmbv.avi": "-c:v zmbv -pix_fmt bgr0 -g 10",
    "flashsv.flv": "-c:v flashsv -pix_fmt bgr24 -g 10",
    "flashsv2.flv": "-c:v flashsv2 -pix_fmt bgr24 -g 10",
    # Each picture by itself.
    "mjpeg.avi": "-c:v mjpeg -q:v 4 -pix_fmt yuvj420p",
    "mjpeg.mov": "-c:v mjpeg -q:v 4 -pix_fmt yuvj420p",
    "mjpeg.mp4": "-c:v mjpeg -q:v 4 -pix_fmt yuvj422p",
    "mjpeg.mkv": "-c:v mjpeg -q:v 4 -pix_fmt yuvj444p",
    "ljpeg.avi": "-c:v ljpeg -pix_fmt bgr24",
    "prores.mov": "-c:v prores_ks -map 1:a -c:a pcm_s16le",
    "prores_4444.mov": "-vf format=yuv444p10le -c:v prores_ks -profile:v 4",
    "prores.mkv": "-c:v prores_ks",
    "dnxhr.mov": "-vf scale=320:240,format=yuv422p -t 0.4 -c:v dnxhd -profile:v dnxhr_sq",
    "cfhd.mov": "-c:v cfhd -pix_fmt yuv422p10le",
    "ffv1.mkv": "-c:v ffv1 -level 3 -g 1 -map 1:a -c:a flac",
    "ffv1_groups.mkv": "-c:v ffv1 -level 3 -g 10 -coder 1 -context 1",
    "ffv1.avi": "-c:v ffv1 -level 3 -g 1",
    "ffv1_1.mov": "-c:v ffv1 -level 1 -g 5",
    "ffv1_rgb.mkv": "-c:v ffv1 -level 3 -pix_fmt bgr0",
    "ffv1_gray16.mkv": "-c:v ffv1 -level 3 -pix_fmt gray16le",
    "huffyuv.avi": "-c:v huffyuv -pix_fmt yuv422p",
    "huffyuv_rgb.mkv": "-c:v huffyuv -pix_fmt rgb24",
    "ffvhuff.avi": "-c:v ffvhuff -pix_fmt yuv420p",
    "ffvhuff.mkv": "-c:v ffvhuff -pix_fmt yuv444p",
    "utvideo.mkv": "-c:v utvideo -pix_fmt yuv420p",
    "utvideo.avi": "-c:v utvideo -pix_fmt gbrp",
    "utvideo.mov": "-c:v utvideo -pix_fmt yuv422p",
    "magicyuv.avi": "-c:v magicyuv -pix_fmt yuv444p",
    "rawvideo.avi": "-c:v rawvideo -pix_fmt yuv420p",
    "rawvideo_rgb.avi": "-c:v rawvideo -pix_fmt bgr24",
    "rawvideo_yuyv.avi": "-c:v rawvideo -pix_fmt yuyv422",
    "rawvideo.mov": "-c:v rawvideo -pix_fmt yuyv422",
    "rawvideo_rgb.mov": "-c:v rawvideo -pix_fmt rgb24",
    "rawvideo.mkv": "-c:v rawvideo -pix_fmt yuv420p -allow_raw_vfw 1",
    "rawvideo.nut": "-c:v rawvideo -pix_fmt rgba",
    "yuv4mpeg.y4m": "-pix_fmt yuv420p",
    "v210.mov": "-c:v v210 -pix_fmt yuv422p10le",
    "v210.avi": "-c:v v210 -pix_fmt yuv422p10le",
    "v308.mov": "-c:v v308",
    "v410.mov": "-c:v v410",
    "r210.mov": "-c:v r210",
    "qtrle.mov": "-c:v qtrle -pix_fmt rgb24 -g 10",
    "qtrle_gray.mov": "-c:v qtrle -pix_fmt gray -g 10",
    "png.mov": "-c:v png",
    "png.mkv": "-c:v png",
    "png.avi": "-c:v png",
    "tiff.mkv": "-c:v tiff",
    "bmp.avi": "-c:v bmp",
    "targa.mov": "-c:v targa",
    "jpeg2000.mov": "-c:v jpeg2000",
    "jpegls.avi": "-c:v jpegls",
    "gif.gif": "-c:v gif",
    "apng.apng": "-c:v apng -plays 0 -f apng",
    "dv.dv": "-vf scale=720:576,format=yuv420p -t 0.2 -c:v dvvideo -f dv",
    "dv.avi": "-vf scale=720:576,format=yuv420p -t 0.2 -c:v dvvideo",
    # Colours.
    "colour_601_full.mp4": H264 + "-g 10 -color_range pc -colorspace smpte170m "
    "-color_primaries smpte170m -color_trc smpte170m",
    "colour_709.mp4": H264 + "-g 10 -color_range tv -colorspace bt709 -color_primaries bt709 "
    "-color_trc bt709",
    "colour_709_full.mkv": H264 + "-g 10 -color_range pc -colorspace bt709",
    "colour_2020.mp4": H264 + "-g 10 -color_range tv -colorspace bt2020nc -color_primaries bt2020 "
    "-color_trc bt2020-10",
    "colour_pq.mp4": H264
    + "-pix_fmt yuv420p10le -g 10 -colorspace bt2020nc -color_primaries bt2020 "
    "-color_trc smpte2084",
    "colour_mpeg4.mp4": "-c:v mpeg4 -q:v 4 -g 10 -colorspace bt709 -color_primaries bt709 "
    "-color_trc bt709",
    "colour_mpeg4.mov": "-c:v mpeg4 -q:v 4 -g 10 -colorspace bt709 -color_primaries bt709 "
    "-color_trc bt709 -movflags write_colr",
    "colour_vp9.webm": VP9 + "-g 10 -colorspace bt709 -color_range tv",
    "colour_vp9.mp4": VP9 + "-g 10 -colorspace bt709 -color_range pc",
    "colour_vp8.mkv": "-c:v libvpx -b:v 300k -g 10 -deadline realtime -colorspace bt709 "
    "-color_range tv",
    "colour_full.mp4": H264 + "-pix_fmt yuvj420p -g 10",
    "colour_ffv1.mkv": "-c:v ffv1 -level 3 -pix_fmt yuv420p -colorspace bt709 -color_range pc",
    "colour_ffv1_sited.mkv": "-c:v ffv1 -level 3 -pix_fmt yuv420p -chroma_sample_location topleft",
    "colour_utvideo.mkv": "-c:v utvideo -pix_fmt yuv420p -colorspace bt709 -color_range pc",
    "colour_rawvideo.mov": "-c:v rawvideo -pix_fmt uyvy422 -colorspace bt709 "
    "-color_primaries bt709 -color_trc bt709 -movflags write_colr",
    "colour_prores.mov": "-c:v prores_ks -colorspace bt709 -color_primaries bt709 -color_trc bt709",
    # Times.
    "times_vfr.mp4": f"-vf {_VFR} -fps_mode vfr " + H264 + "-g 8 -bf 2",
    "times_vfr.mkv": f"-vf {_VFR} -fps_mode vfr " + H264 + "-g 8 -bf 2",
    "times_gap.mp4": "-vf select=lt(n\\,12)+gt(n\\,28) -fps_mode vfr " + H264 + "-g 8 -bf 2",
    "times_gap.avi": "-vf select=lt(n\\,12)+gt(n\\,28) -fps_mode vfr -c:v mpeg4 -q:v 4 -g 8 -bf 2",
    "times_twice.mp4": "-vf setpts=floor(N/2)*2/25/TB -fps_mode passthrough " + H264 + "-g 8 -bf 0",
    "times_2997.mp4": "-vf setpts=N*1001/30000/TB -r 30000/1001 " + H264 + "-g 8 -bf 2",
    "times_23976.mkv": "-vf setpts=N*1001/24000/TB -r 24000/1001 " + H264 + "-g 8 -bf 2",
    # Sizes.
    "size_16x16.mp4": "-vf scale=16:16 " + H264 + "-g 10 -bf 2",
    "size_2x2.mp4": "-vf scale=2:2 " + H264 + "-g 10 -bf 2",
    "size_34x18.mp4": "-vf scale=34:18 " + H264 + "-g 10 -bf 2",
    "size_18x320.mp4": "-vf scale=18:320 " + H264 + "-g 10 -bf 2",
    "size_1x1.mkv": "-vf scale=1:1 -pix_fmt yuv444p -c:v ffv1",
    "size_odd_444.mp4": "-vf scale=33:17 " + H264 + "-pix_fmt yuv444p -g 10 -bf 2",
    "size_odd_hevc.mp4": "-vf scale=90:50 " + _x265("keyint=10"),
    "size_wide_pixels.mp4": "-vf setsar=16/11 " + H264 + "-g 10",
    "size_one_frame.mp4": "-frames:v 1 " + H264,
    "size_one_frame.webm": "-frames:v 1 " + VP9,
}

# Name of the file -> options of its inputs, and of the output; `IN` is this output's first input.
_HIGH, _OPEN = "-i h264_high.mp4", "-i h264_open.mp4"
COPIED: dict[str, tuple[str, str]] = {
    "copy_faststart.mp4": (_HIGH, "-c copy -movflags +faststart"),
    "copy_fragments.mp4": (_HIGH, "-c copy -movflags frag_keyframe+empty_moov"),
    "copy_fragments_default.mp4": (
        _HIGH, "-c copy -movflags frag_keyframe+empty_moov+default_base_moof"),
    "copy_fragments_each.mp4": (_HIGH, "-c copy -movflags frag_every_frame+empty_moov"),
    "copy_cmaf.mp4": (_HIGH, "-c copy -movflags cmaf+frag_keyframe+dash"),
    "copy_negative_cts.mp4": (_HIGH, "-c copy -movflags negative_cts_offsets"),
    "copy_no_edits.mp4": (_HIGH, "-c copy -use_editlist 0"),
    "copy_1000.mp4": (_HIGH, "-c copy -video_track_timescale 1000"),
    "copy_12345.mp4": (_HIGH, "-c copy -video_track_timescale 12345"),
    "copy_90000.mov": (_HIGH, "-c copy -video_track_timescale 90000"),
    "copy_offset.mp4": (_HIGH, "-c copy -output_ts_offset 5"),
    "copy_late_video.mp4": ("-itsoffset 0.7 " + _HIGH, "-map IN:v -c copy"),
    "copy_cut.mp4": ("-ss 0.6 -t 0.6 " + _HIGH, "-c copy"),
    "copy_cut.mkv": ("-ss 0.6 -t 0.6 " + _HIGH, "-c copy"),
    "copy_cut_negative.mkv": ("-ss 0.6 -t 0.6 " + _HIGH, "-c copy -avoid_negative_ts disabled"),
    "copy_cut_negative.mp4": ("-ss 0.6 -t 0.6 " + _HIGH, "-c copy -avoid_negative_ts disabled"),
    "copy_cut_open.mp4": ("-ss 0.6 -t 0.6 " + _OPEN, "-c copy"),
    "copy_cut_open_hevc.mp4": ("-ss 0.6 -t 0.6 -i hevc_open.mp4", "-c copy"),
    "copy_sound_first.mp4": (_HIGH, "-map IN:a -map IN:v -c copy"),
    "copy_two_videos.mp4": (_HIGH, "-map IN:v -map IN:v -map IN:a -c copy"),
    "copy_cover.mp4": (
        _HIGH, "-map IN:v -map IN:v -c:v:0 copy -c:v:1 png -frames:v:1 1 "
        "-disposition:v:1 attached_pic"),
    "copy_cover_first.mkv": (
        _HIGH, "-map IN:v -map IN:v -c:v:0 png -frames:v:0 1 -disposition:v:0 attached_pic "
        "-c:v:1 copy"),
    "copy_tags.mp4": (_HIGH, "-c copy -metadata title=hello -movflags use_metadata_tags"),
    "copy_timecode.mov": (_HIGH, "-c copy -timecode 01:00:00:00"),
    "copy_turned_90.mp4": (_HIGH, "-c copy -metadata:s:v:0 rotate=90"),
    "copy_turned_180.mp4": (_HIGH, "-c copy -metadata:s:v:0 rotate=180"),
    "copy_turned_270.mp4": (_HIGH, "-c copy -metadata:s:v:0 rotate=270"),
    "copy.mkv": (_HIGH, "-c copy"),
    "copy_live.mkv": (_HIGH, "-c copy -f matroska -live 1"),
    "copy_clusters.mkv": (_HIGH, "-c copy -cluster_size_limit 4096"),
    "copy_crc.mkv": (_HIGH, "-c copy -write_crc32 1 -reserve_index_space 4096"),
    "copy.ts": (_HIGH, "-c copy"),
    "copy.m2ts": (_HIGH, "-c copy -mpegts_m2ts_mode 1"),
    "copy_two.ts": (_HIGH, "-map IN:v -map IN:v -map IN:a -c copy"),
    "copy.mov": (_HIGH, "-c copy"),
    "copy.3gp": ("-i h264_baseline.mp4", "-map IN:v -c copy"),
    "copy.m4v": (_HIGH, "-map IN:v -c copy"),
    "copy.nut": (_HIGH, "-c copy"),
    "copy.f4v": (_HIGH, "-c copy"),
    "copy.wtv": ("-i mpeg2.mpg", "-c copy"),
    "copy_avc3.mp4": ("-i h264_aud.ts", "-map IN:v -c copy -tag:v avc3"),
    # Colours that only the container tells.
    "tagged_709_full.mkv": (_HIGH, "-c copy -colorspace bt709 -color_range pc"),
    "tagged_709.mp4": (
        _HIGH, "-c copy -colorspace bt709 -color_primaries bt709 -color_trc bt709 -color_range tv"),
    "tagged_709_full.mov": (
        _HIGH, "-c copy -colorspace bt709 -color_primaries bt709 -color_trc bt709 -color_range pc "
        "-movflags write_colr"),
    "tagged_2020.mkv": (_HIGH, "-c copy -colorspace bt2020nc -color_range tv"),
    "tagged_601.mp4": (
        "-i colour_709.mp4",
        "-c copy -colorspace smpte170m -color_primaries smpte170m -color_trc smpte170m"),
}  # fmt: skip

# Some of each kind, which always run.
FIFTH = (
    "h264_high.mp4", "h264_open.mp4", "h264_refresh.mp4", "h264_10.mp4", "h264.avi", "h264.h264",
    "h264_tff.mp4", "h261.avi",
    "hevc_open.mp4", "hevc.ts", "av1_svt.mp4", "vp8_altref.webm", "vp9_altref.mp4", "mpeg1.mpg",
    "mpeg2.mkv", "mpeg2.avi", "mpeg4_b.avi", "mpeg4.mp4", "xvid_packed.avi", "xvid_times.mkv",
    "wmv2.wmv", "flv1.flv", "mjpeg.avi", "ffv1_groups.mkv", "utvideo.mkv", "rawvideo.avi",
    "rawvideo.mov", "qtrle.mov", "png.mov", "gif.gif", "colour_mpeg4.mp4", "colour_ffv1.mkv",
    "colour_709.mp4", "times_vfr.mp4", "times_gap.avi", "times_twice.mp4", "size_1x1.mkv",
    "copy_fragments.mp4", "copy_cut.mp4", "copy_cut.mkv", "copy_turned_90.mp4",
    "copy_cover_first.mkv",
    "copy_12345.mp4", "copy.ts", "tagged_709_full.mkv", "tagged_709_full.mov", "tagged_601.mp4",
)  # fmt: skip

# Files that are refused, and by what words.
REFUSED: dict[str, str] = {
    # FFmpeg writes times of showing that XviD's order contradicts.
    "xvid_times.mkv": "by the container's times coded frame",
    # The palette is a part of packets.
    "qtrle_gray.mov": "packet 0 has a palette",
    # The cut leaves out pictures that those before the first shown one name.
    "copy_cut_open.mp4": "h264: coded video frame",
}


def make_family(folder: Path, names: Iterable[str]) -> list[str]:
    """Make files of the family, with those that they are copied from.

    Returns:
        The names, without those whose encoder this FFmpeg lacks.
    """
    asked = [*names]
    known = [name for name in asked if _can_make(name)]
    sources = {
        Path(word).name
        for name in known
        if name in COPIED
        for word in COPIED[name][0].split()
        if word in ENCODED
    }
    encoded = [name for name in ENCODED if name in known or name in sources]
    command = ["-f", "lavfi", "-i", _SOURCE, "-f", "lavfi", "-i", _SOUND]
    for name in encoded:
        command += ["-map", "0:v", *ENCODED[name].split(), name]
    _ffmpeg(command, folder)
    inputs: list[str] = []
    outputs: list[str] = []
    for number, name in enumerate(name for name in known if name in COPIED):
        before, after = COPIED[name]
        inputs += before.split()
        after = after.replace("IN", str(number))
        maps = [] if "-map" in after else ["-map", f"{number}:v", "-map", f"{number}:a?"]
        outputs += [*maps, *after.split(), name]
    if inputs:
        _ffmpeg([*inputs, *outputs], folder)
    return known


def _ffmpeg(arguments: list[str], folder: Path) -> None:
    command = ["ffmpeg", "-v", "error", "-y", "-nostdin", "-threads", "1", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def _can_make(name: str) -> bool:
    if name in COPIED:
        return True
    words = ENCODED[name].split()
    return all(word in _encoders() for before, word in pairwise(words) if before.startswith("-c:"))


@functools.cache
def _encoders() -> frozenset[str]:
    done = subprocess.run(
        ["ffmpeg", "-v", "error", "-encoders"], capture_output=True, text=True, check=True
    )
    return frozenset(line.split()[1] for line in done.stdout.splitlines() if len(line.split()) > 1)
