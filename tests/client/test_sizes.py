"""How people write sizes, shares and durations."""

import pytest

from gpulease.sizes import human_size, parse_duration, parse_percent, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("1K", 1 << 10),
        ("1KiB", 1 << 10),
        ("1kB", 1000),
        ("512M", 512 << 20),
        ("512MiB", 512 << 20),
        ("512MB", 512_000_000),
        ("48G", 48 << 30),
        ("48g", 48 << 30),
        ("48 GiB", 48 << 30),
        ("80GB", 80_000_000_000),
        ("1T", 1 << 40),
        ("1TiB", 1 << 40),
        ("2TB", 2 * 10**12),
        ("1.5G", 3 << 29),
        ("0.1G", (1 << 30) // 10),
        ("1073741824", 1 << 30),
        ("4096B", 4096),
    ],
)
def test_sizes(text: str, size: int) -> None:
    """K and KiB are powers of 1024, kB is a power of 1000, and fractions lose nothing but part bytes."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "G", "-1G", "0G", "1P", "1GG", "1iB", "48", "1e9", "1,5G", "٣G", "nan", "25%", "1Gi"]
)
def test_no_sizes(text: str) -> None:
    """What is no size is refused, a number that surely lacks its unit too."""
    with pytest.raises(ValueError, match="48G"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "percent"), [("25%", 25.0), ("12.5%", 12.5), ("100%", 100.0), (" 1 % ", 1.0)]
)
def test_percents(text: str, percent: float) -> None:
    """A share is a number with a percent sign."""
    assert parse_percent(text) == percent


@pytest.mark.parametrize("text", ["0%", "101%", "25", "%", "-5%", "1e1%"])
def test_no_percents(text: str) -> None:
    """A share is above 0 and at most 100."""
    with pytest.raises(ValueError, match="25%"):
        parse_percent(text)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("90s", 90), ("15m", 900), ("2h", 7200), ("1d", 86400), ("1h30m", 5400)]
)
def test_durations(text: str, seconds: int) -> None:
    """Durations combine days, hours, minutes and seconds; a bare number is seconds."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "0", "0s", "m", "5x", "1m1h", "-5s", "1.5h"])
def test_no_durations(text: str) -> None:
    """What is no duration is refused with the accepted forms."""
    with pytest.raises(ValueError, match="1h30m"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (48 << 30, "48 GiB"), (3 << 29, "1.5 GiB"), (1 << 50, "1024 TiB"), (None, "?")],
)
def test_human_size(size: int, text: str) -> None:
    """Sizes are shown in the largest unit of 1024 that leaves at least 1."""
    assert human_size(size) == text
