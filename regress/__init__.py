"""comm-regress: a performance gate for GPU-to-GPU communication. Importing this loads nothing else."""

__version__ = "0.1.0"
