"""What this machine can measure and what stands in the way: facts are collected once, pure checks judge them."""
