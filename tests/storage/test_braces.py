import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.storage.url_patterns import expand_braces


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a.tar", ["a.tar"]),
        ("", [""]),
        ("a{1..3}", ["a1", "a2", "a3"]),
        ("{000..002}.tar", ["000.tar", "001.tar", "002.tar"]),
        ("{8..11}", ["8", "9", "10", "11"]),
        ("{08..11}", ["08", "09", "10", "11"]),
        ("{8..0011}", ["0008", "0009", "0010", "0011"]),
        ("{0..10..2}", ["0", "2", "4", "6", "8", "10"]),
        ("{00..10..5}", ["00", "05", "10"]),
        ("{3..1}", ["3", "2", "1"]),
        ("{10..0..-4}", ["10", "6", "2"]),
        ("{-1..1}", ["-1", "0", "1"]),
        ("{7..7}", ["7"]),
        ("{0..0}", ["0"]),
        ("{2..0}", ["2", "1", "0"]),
        ("{a,b}.tar", ["a.tar", "b.tar"]),
        ("x{a,}y", ["xay", "xy"]),
        ("{train,val-{0..1}}", ["train", "val-0", "val-1"]),
        ("{a,b{c,d{e,f}}}g", ["ag", "bcg", "bdeg", "bdfg"]),
        ("{0..1}{a,b}", ["0a", "0b", "1a", "1b"]),
        ("{x}", ["{x}"]),
        ("{}", ["{}"]),
        ("{shard}-{0..1}", ["{shard}-0", "{shard}-1"]),
        ("{a..c}.tar", ["a.tar", "b.tar", "c.tar"]),
        ("{c..a}{A..e..16}", ["cA", "cQ", "ca", "bA", "bQ", "ba", "aA", "aQ", "aa"]),
        (r"\{a,b\}-{0..1}", ["{a,b}-0", "{a,b}-1"]),
        (r"{a\,b,c}", ["a,b", "c"]),
        (r"no\braces.tar", [r"no\braces.tar"]),
        ("{001..3}", ["001", "002", "003"]),
        ("{-01..1}", ["-01", "000", "001"]),
        ("{a,{}}", ["a", "{}"]),
        ("s3://b/{0..1}.tar?v={a,b}", [f"s3://b/{i}.tar?v={c}" for i in "01" for c in "ab"]),
    ],
)
def test_patterns_stand_for_these_names(pattern, names):
    assert expand_braces(pattern) == names


@pytest.mark.parametrize(
    ("pattern", "problem"),
    [
        ("{0..3", "unbalanced '{'"),
        ("a}b", "unbalanced '}'"),
        ("{a,{b}", "unbalanced '{'"),
        ("{0..9..0}", "step of a range is 0"),
        ("{0..999999999999999999999}", "more than 10,000,000 names"),
        ("{0..9999}{0..9999}", "more than 10,000,000 names"),
        # Counted, not made: it ends at once.
        ("{a,b}" * 40, "more than 10,000,000 names"),
        ("{a,b}" * 4000, "more than 10,000,000 names"),
        ("{0..9}" * 9, "more than 10,000,000 names"),
        ("{" * 3000, "more than 50 deep"),
        ("{" * 3000 + "}" * 3000, "braces are more than 50 deep"),
    ],
)
def test_patterns_that_cannot_be_meant_are_refused(pattern, problem):
    with pytest.raises(ValueError, match=problem) as caught:
        expand_braces(pattern)
    assert pattern[:6] in str(caught.value)


@settings(max_examples=60)
@given(
    first=st.integers(0, 300),
    count=st.integers(1, 40),
    step=st.integers(1, 7),
    pad=st.integers(1, 5),
)
def test_a_padded_range_has_each_number_once_at_one_width(first, count, step, pad):
    last = first + (count - 1) * step
    names = expand_braces(f"p-{{{first:0{pad}d}..{last:0{pad}d}..{step}}}.tar")
    assert [int(name[2:-4]) for name in names] == [first + i * step for i in range(count)]
    if len(f"{first:0{pad}d}") == len(f"{last:0{pad}d}"):
        assert len({len(name) for name in names}) == 1


def test_bash_expands_the_same_patterns_in_the_same_way():
    patterns = ["x{08..11}y", "{a,b{1..3}}", "{10..0..4}", "p{0..1}{c,d}", "{-2..02}", "{x}"]
    patterns += ["{a..e..2}", "{e..a}", r"\{a,b\}", r"{a\,b,c}", "{-01..3}", "{1..3}{x,}", "{,a}b"]
    patterns += [
        "{{a,b},c}",
        "{a,b}{x}",
        "{0..10..3}",
        "a{,}",
        "{00..10..5}",
        "{7..7}",
        "{8..0011}",
    ]
    try:
        shell = subprocess.run(
            ["bash", "-c", f"printf '%s\\n' {' '.join(patterns)}"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
    except FileNotFoundError:
        pytest.skip("no bash here")
    assert shell.stdout.split() == [name for p in patterns for name in expand_braces(p)]
