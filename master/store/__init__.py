"""Where hard state is kept: one seam (base.py) and its ends."""
