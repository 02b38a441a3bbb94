"""`moonpool bench`: what the hot paths cost, verified, with the machine's own limits measured in the same run."""
