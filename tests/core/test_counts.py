import pytest

from rl_lab.core.counts import read_count


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *[("5000", 5000), ("5_000", 5000), ("5e3", 5000), ("5k", 5000), ("5K", 5000)],
        *[("1M", 1_000_000), ("1.5M", 1_500_000), ("2b", 2 * 10**9), ("0", 0), ("-5", -5)],
        *[("1.1k", 1100), ("4.35k", 4350), ("0.1M", 100_000), (" 7 ", 7)],
        ("123456789012345678901", 123456789012345678901),  # no float in between
    ],
)
def test_the_number_that_is_meant(text, number):
    assert read_count(text) == number


@pytest.mark.parametrize(
    "text", ["", "k", "ten", "1.5", "1e-3", "5kk", "5 k", "1e999", "nan", "inf", "0.0001k", "."]
)
def test_no_whole_number(text):
    assert read_count(text) is None
