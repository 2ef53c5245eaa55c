"""The steps of a plan: what they read, compute and write. Each holds its weights; `build` makes them."""
