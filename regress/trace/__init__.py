"""Profiler output in, one timeline out."""
