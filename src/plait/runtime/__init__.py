"""The runtime: weights as stored, and the operations on them."""
