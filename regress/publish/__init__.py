"""The shelf of sinks and renderers: a finished run in, bytes for one destination out."""
