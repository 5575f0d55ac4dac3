"""What commands write: names from the data can't steer a terminal, tables lose nothing."""

from __future__ import annotations

import contextlib
import io
import json

import pytest

from shardwise.cli import output


def test_control_characters_of_names_are_shown_as_escapes():
    assert output.clean("a\x1b[31mb\nc\x9b") == "a\\x1b[31mb\\nc\\x9b"
    assert output.clean("right-to-left \u202e") == "right-to-left \\u202e"
    assert output.clean("half a pair \udc80") == "half a pair \\udc80"


def test_names_of_any_script_are_shown_as_they_are():
    assert output.clean("größe/写真 01.tar") == "größe/写真 01.tar"


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (1_500_000_000, "1.5 GB"),
        (2 * 10**15, "2.0 PB"),
    ],
)
def test_sizes_are_decimal_and_never_round_to_a_thousand_of_a_unit(num_bytes, text):
    assert output.format_bytes(num_bytes) == text


def test_counts_are_written_with_their_noun():
    assert output.plural(1, "shard") == "1 shard"
    assert output.plural(1200, "shard") == "1,200 shards"
    assert output.plural(0, "batch", "batches") == "0 batches"


def test_a_table_that_is_piped_is_never_cut_or_folded(capsys):
    long = "s3://bucket/" + "x" * 500 + ".tar"
    output.write_table(["url", ">samples"], [[long, "1"], ["b", "1,000"]])
    written = capsys.readouterr().out
    assert long in written
    assert "\x1b" not in written


def test_markup_in_names_is_no_markup(capsys):
    output.write_table(["url"], [["[red]a[/red] :smile:"]])
    assert "[red]a[/red] :smile:" in capsys.readouterr().out


def test_a_stream_that_knows_only_ascii_gets_ascii():
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    with contextlib.redirect_stdout(stream):
        output.write_line("写真")
        output.write_table(["url", output.bar([0, 0.5, 1])], [["写真", "1"]])
    written = raw.getvalue()
    assert written.startswith(b"\\u5199\\u771f\n")
    assert b" =@" in written


def test_a_bar_tells_nothing_from_a_little_and_a_part_from_all():
    assert output.bar([0.0, 1e-9, 0.12, 0.13, 0.5, 0.999, 1.0]) == " ▁▁▁▄▇█"


def test_a_document_is_json_of_ascii(capsys):
    output.write_document({"url": "写真\x1b"})
    written = capsys.readouterr().out
    assert written.isascii()
    assert "\x1b" not in written
    assert json.loads(written) == {"url": "写真\x1b"}


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "good"),
    [({}, "\x1b[32mfine\x1b[0m\n"), ({"NO_COLOR": "1"}, "fine\n"), ({"TERM": "dumb"}, "fine\n")],
    ids=["terminal", "NO_COLOR", "dumb"],
)
def test_verdicts_have_colours_on_a_terminal_that_shows_them(monkeypatch, variables, good):
    terminal = Terminal()
    monkeypatch.setattr("sys.stdout", terminal)
    for name in ("NO_COLOR", "FORCE_COLOR", "COLORTERM", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in ({"TERM": "xterm-256color"} | variables).items():
        monkeypatch.setenv(name, value)
    output.write_line("fine", is_well=True)
    output.write_line("broken", is_well=False)
    output.write_line("neither")
    bad = good.replace("fine", "broken").replace("[32m", "[31m")
    assert terminal.getvalue() == f"{good}{bad}neither\n"


def test_verdicts_are_plain_where_another_program_reads(capsys):
    output.write_line("fine", is_well=True)
    output.write_line("broken", error=True, is_well=False)
    assert capsys.readouterr() == ("fine\n", "broken\n")
