"""Simulations of large clusters: the real cores of the master, on paper nodes, under a cost model of the network."""
