"""Keys, wire messages, configuration and errors: the words every part of Moonpool shares. No I/O."""
