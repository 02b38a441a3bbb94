"""The transport `mooncake`: a transfer engine as data plane."""
