"""What earlier runs measured: immutable files, and an index that can always be rebuilt from them.

The door is `regress.history.store.open_history`; moving runs is `regress.history.exchange`.
"""
