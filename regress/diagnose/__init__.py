"""The shelf of rules: what a trace shows, the likely cause, and the change to try."""
