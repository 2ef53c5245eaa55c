"""Whether the invariants hold: on a small random model of a model's own layer kinds, or on its real weights."""

from plait.runtime.verify.check import Check
from plait.runtime.verify.run import CLAIMS, verify_model, verify_small
from plait.runtime.verify.subject import Subject, default_lengths

__all__ = ["CLAIMS", "Check", "Subject", "default_lengths", "verify_model", "verify_small"]
