"""Units: what is accepted, what is refused and how it is said, and that display and input agree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from regress.errors import ConfigError
from regress.units import (
    Unit,
    exact_size,
    format_change,
    format_seconds,
    format_size,
    format_value,
    parse_quantity,
    parse_size,
)


@pytest.mark.parametrize(("text", "unit", "value"), [
    ("3us", Unit.SECONDS, 3e-6), ("3 µs", Unit.SECONDS, 3e-6), ("50ms", Unit.SECONDS, 0.05), ("2s", Unit.SECONDS, 2.0),
    ("15min", Unit.SECONDS, 900.0), ("85%", Unit.RATIO, 0.85), ("300GB/s", Unit.BYTES_PER_SECOND, 3e11),
    ("4KiB", Unit.BYTES, 4096.0), ("12", Unit.COUNT, 12.0), ("120/s", Unit.PER_SECOND, 120.0),
])
def test_what_people_write_becomes_base_units(text: str, unit: Unit, value: float) -> None:
    assert parse_quantity(text, unit) == value


@pytest.mark.parametrize(("text", "message"), [
    ("16MB", "f:3: 'f' is wrong: '16MB' is not a value in bytes; accepted: a size in powers of 1024 such as 4KiB or "
             "25MiB (B, KiB, MiB, GiB, TiB); message sizes are powers of 1024: write MiB"),
    ("16mib", "f:3: 'f' is wrong: '16mib' is not a value in bytes; accepted: a size in powers of 1024 such as 4KiB or "
              "25MiB (B, KiB, MiB, GiB, TiB); did you mean MiB?"),
    ("0B", "f:3: 'f' is wrong: '0B' is not a whole, positive number of bytes below 8 EiB; accepted: a size in powers "
           "of 1024 such as 4KiB or 25MiB (B, KiB, MiB, GiB, TiB)"),
])
def test_a_size_that_is_refused_names_place_and_remedy(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_size(text, "f:3: 'f' is wrong")
    assert str(refused.value) == message
    assert refused.value.exit_status == 4


@pytest.mark.parametrize("text", ["", "ms", "3", "1e", "--3ms", "3 m s", "nan", "inf s"])
def test_a_duration_needs_a_number_and_a_unit(text: str) -> None:
    with pytest.raises(ConfigError, match="accepted: a duration such as 3us, 50ms or 2s"):
        parse_quantity(text, Unit.SECONDS)


@given(st.integers(min_value=1, max_value=1023), st.sampled_from(["B", "KiB", "MiB", "GiB"]))
def test_a_whole_size_reads_back_as_it_is_shown(amount: int, suffix: str) -> None:
    assert format_size(parse_size(f"{amount}{suffix}")) == f"{amount}{suffix}"


@given(st.integers(1, 2**20), st.sampled_from([1, 512, 2**10, 2**19, 2**20, 2**30]))
def test_the_name_of_a_size_is_its_own(amount: int, step: int) -> None:
    assert parse_size(exact_size(amount * step)) == amount * step
    assert exact_size(amount * step) in (format_size(amount * step), f"{amount * step}B")


@pytest.mark.parametrize("text", ["1e999s", "-1e999s", "1e308h"])
def test_a_number_beyond_every_float_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="is too large a number; accepted: a duration"):
        parse_quantity(text, Unit.SECONDS)


@given(st.floats(min_value=1e-9, max_value=1e4))
def test_shown_seconds_are_within_their_three_digits(seconds: float) -> None:
    assert parse_quantity(format_seconds(seconds), Unit.SECONDS) == pytest.approx(seconds, rel=5.1e-3)


@pytest.mark.parametrize(("value", "unit", "shown"), [
    (None, Unit.SECONDS, "–"), (0.0, Unit.SECONDS, "0 s"), (898.1e-6, Unit.SECONDS, "898 µs"),
    (1.5e-3, Unit.SECONDS, "1.50 ms"), (301.2e9, Unit.BYTES_PER_SECOND, "301 GB/s"), (0.853, Unit.RATIO, "85.3 %"),
    (25 * 2**20, Unit.BYTES, "25MiB"), (49.0, Unit.COUNT, "49"), (1536.0, Unit.BYTES, "1.5KiB"),
    (999.96e-6, Unit.SECONDS, "1.00 ms"), (5.0, Unit.BYTES_PER_SECOND, "5.00 B/s"), (0.5, Unit.PER_SECOND, "0.50 /s"),
])
def test_values_for_people(value: float | None, unit: Unit, shown: str) -> None:
    assert format_value(value, unit) == shown


@pytest.mark.parametrize(("change", "shown"), [(None, "–"), (0.123, "+12.3 %"), (-0.05, "-5.0 %"), (9.0, "×10.0"),
                                               (0.0, "+0.0 %")])
def test_changes_for_people(change: float | None, shown: str) -> None:
    assert format_change(change) == shown
