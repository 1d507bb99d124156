from nvrx_async.job.times import earlier, first, last, seconds_between


def test_moments_are_counted_back_in_utc_with_milliseconds():
    assert earlier("2026-01-01T00:00:01.500Z", 2.25) == "2025-12-31T23:59:59.250Z"


def test_what_is_no_moment_is_unknown():
    assert earlier("+12.345", 1.0) == ""
    assert seconds_between("", "2026-01-01T00:00:00Z") is None


def test_clocks_that_disagree_give_a_negative_time():
    assert seconds_between("2026-01-01T00:00:01Z", "2026-01-01T00:00:00.5Z") == -0.5


def test_first_and_last_pass_over_the_unknown_and_compare_moments_not_texts():
    moments = ["", "2026-01-01T01:00:00+01:00", "2026-01-01T00:30:00.000Z"]
    assert first(moments) == "2026-01-01T01:00:00+01:00"
    assert last(moments) == "2026-01-01T00:30:00.000Z"
    assert first(["", "x"]) == ""
