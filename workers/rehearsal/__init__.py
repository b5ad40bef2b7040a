"""Runs that show what the product does: the demo, with a checker that goes red. The product imports none of it."""
