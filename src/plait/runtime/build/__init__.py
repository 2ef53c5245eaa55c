"""From a blueprint and its weights to the steps of a plan: a module for each word of the blueprint that computes."""
