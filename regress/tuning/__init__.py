"""Trying settings: interleaved launches with and without each, judged by the gate's own statistics.

    settings   what can be tried, what is tried by default, and what is refused with the reason
    trial      the launches, round by round, and what they amount to
    report     the outcome as text and as JSON, with the lines to copy
"""
