"""Records in, verdicts out: no files, no processes."""
