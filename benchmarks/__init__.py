"""moonpool.benchmarks"""
