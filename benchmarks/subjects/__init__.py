"""What is measured: Moonpool, its opponents, and the machine's own limits, behind one seam."""
