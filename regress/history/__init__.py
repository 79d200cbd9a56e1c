"""What earlier runs measured: immutable files, and an index that can always be rebuilt from them."""
