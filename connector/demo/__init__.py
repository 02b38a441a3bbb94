"""`moonpool demo`: two vLLM engines that share one pool on this machine, checked against a third without it."""
