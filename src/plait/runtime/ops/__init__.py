"""Operators. Each stands as a reference form (short, plain torch, float64-capable) and, where it is worth it, faster
forms with the same signature. A form says whether it keeps the exactness contract: a row's bits are a function of
the token prefix alone, never of how many rows or which company a call has. See `exact` for what torch does to bits."""
